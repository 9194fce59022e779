"""Commands that take studies to other programs: trackers of experiments, and agents."""

from __future__ import annotations

from typing import Annotated

import typer

from scamp.addresses import local_service
from scamp.cli.service import Address, StudyId, Token, client_of
from scamp.cli.terminal import out
from scamp.installed import NotInstalled

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


@app.command()
def mcp(
    http: Annotated[int | None, typer.Option(help="serve over HTTP on this port; default: stdio", min=1)] = None,
    host: Annotated[str, typer.Option(help="address to listen on with --http")] = "127.0.0.1",
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="let agents submit and stop studies, and enqueue candidates")
    ] = False,
    address: Address = "",
    token: Token = "",
) -> None:
    """Serve the Model Context Protocol, by which an agent asks a service about its studies."""
    try:
        from scamp import mcp_server
    except ModuleNotFoundError as error:
        raise NotInstalled("scamp mcp needs a package that is not installed here: pip install mcp") from error
    client = client_of(address, token, to_change=allow_changes)
    server = mcp_server.mcp_server(client, allow_changes=allow_changes)
    if http is None:
        server.run("stdio")
    else:
        mcp_server.serve_http(server, host, http, token or None)
