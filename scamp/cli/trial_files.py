"""Commands for what a trial leaves: files that its workload keeps, and the weights of its last checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal
from rich.table import Table

from scamp.cli.service import Address, StudyId, Token, client_of
from scamp.cli.terminal import out

if TYPE_CHECKING:
    pass

app = typer.Typer()

Number = Annotated[int | None, typer.Argument(help="the trial's number; default: the best trial", min=0)]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="file to write; default: in this folder")]


@app.command()
def files(study: StudyId, trial: Number = None, address: Address = "", token: Token = "") -> None:
    """List the files that a trial keeps (`Workload.artifact`)."""
    client = client_of(address, token)
    number = client.best_trained(study) if trial is None else trial
    table = Table("File", "Size", box=None)
    for artifact in client.files(study, number):
        table.add_row(artifact["name"], decimal(artifact["num_bytes"]))
    out.print(table if table.row_count else f"trial {number} of study {study} keeps no file")


@app.command()
def download(
    study: StudyId,
    name: Annotated[str, typer.Argument(help="the file's name, as `scamp files` lists it")],
    trial: Annotated[int | None, typer.Option(help="the trial's number; default: the best trial", min=0)] = None,
    output: Output = None,
    address: Address = "",
    token: Token = "",
) -> None:
    """Download a file that a trial keeps."""
    client = client_of(address, token)
    target = output or Path(Path(name).name)
    number = client.best_trained(study) if trial is None else trial
    client.download(study, number, name, target)
    out.print(str(target), markup=False, soft_wrap=True)


@app.command()
def weights(
    study: StudyId,
    trial: Number = None,
    output: Output = None,
    raw: Annotated[bool, typer.Option("--raw", help="the weights that train, where evaluations use averages")] = False,
    address: Address = "",
    token: Token = "",
) -> None:
    """Write the weights of a trial as a file for `torch.load`: the state dictionary of its whole model.

    They are those of its last checkpoint, or of its best report if that one counts: with averages, if its metrics were
    measured with them. It is the same file under every plan: shards are put together.
    """
    client = client_of(address, token)
    number = client.best_trained(study) if trial is None else trial
    target = output or Path(f"study-{study}-trial-{number}.pt")
    written = client.weights(study, number, target, raw=raw)
    kind = "" if not written["has_averages"] else ", those that train" if raw else ", averaged as for its metrics"
    words = f"{written['num_tensors']} tensors, {decimal(written['num_bytes'])}, of trial {number}"
    out.print(f"{target}: {words} at step {written['step']}{kind}", markup=False, soft_wrap=True)
