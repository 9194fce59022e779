"""Commands for what a trial leaves: files that its workload keeps, and the weights of its last checkpoint."""

from __future__ import annotations

import tarfile
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal
from rich.table import Table

from scamp_service.cli.service import Address, StudyId, Token, client_of
from scamp_service.cli.terminal import out
from scamp_service.client import Client
from scamp_service.errors import NotFound

app = typer.Typer()

Number = Annotated[int | None, typer.Argument(help="the trial's number; default: the best trial", min=0)]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="file to write; default: in this folder")]


@app.command()
def files(study: StudyId, trial: Number = None, address: Address = "", token: Token = "") -> None:
    """List the files that a trial keeps (`Workload.artifact`)."""
    client = client_of(address, token)
    number = _number(client, study, trial)
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
    client.download(study, _number(client, study, trial), name, target)
    out.print(str(target), markup=False, soft_wrap=True)


@app.command()
def weights(
    study: StudyId, trial: Number = None, output: Output = None, address: Address = "", token: Token = ""
) -> None:
    """Write the weights of a trial's last checkpoint as a file for `torch.load`: its whole model's state dictionary.

    It is the same file under every plan: shards are put together.
    """
    from workloads.training.checkpoints.checkpoint import write_weights  # imports torch, which takes seconds

    client = client_of(address, token)
    number = _number(client, study, trial)
    target = output or Path(f"study-{study}-trial-{number}.pt")
    with tempfile.TemporaryDirectory(prefix="scamp-") as directory:
        archive, folder = Path(directory) / "checkpoint.tar", Path(directory) / "checkpoint"
        client.checkpoint(study, number, archive)
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        archive.unlink()
        num_tensors, num_bytes = write_weights(folder, target)
    words = f"{target}: {num_tensors} tensors, {decimal(num_bytes)}, of trial {number}"
    out.print(words, markup=False, soft_wrap=True)


def _number(client: Client, study: int, trial: int | None) -> int:
    if trial is not None:
        return trial
    best = client.study(study)["best"]
    if best is None:
        raise NotFound(f"study {study} has no best trial yet; name one")
    return int(best["trial"])
