"""The command that writes a study to trackers of experiments."""

from __future__ import annotations

from typing import Annotated

import typer

from scamp.addresses import local_service
from scamp.cli.service import Address, StudyId, Token, client_of
from scamp.cli.terminal import out

app = typer.Typer()


@app.command()
def mirror(
    study: StudyId,
    to: Annotated[
        list[str],
        typer.Option(
            help="tensorboard=DIR, mlflow=URI, wandb=PROJECT or otlp=URL; repeatable", metavar="TRACKER=PLACE"
        ),
    ],
    address: Address = "",
    token: Token = "",
) -> None:
    """Write a study to TensorBoard, MLflow, Weights & Biases or OpenTelemetry, and follow it to its end.

    It may be interrupted and started again: nothing is written twice.
    """
    from scamp.trackers import mirroring

    mirroring.mirror(client_of(address, token), study, *to, dashboard=address or local_service().url)
    out.print(f"study {study} is in {', '.join(to)}", markup=False, soft_wrap=True)
