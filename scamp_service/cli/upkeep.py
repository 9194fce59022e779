"""The commands of those who run a service: what keeps it from starting, and copies of what it holds."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from scamp.cli.terminal import AsJson, out
from scamp_service.cli.terminal import DataDir, settings_of

app = typer.Typer()
BackupFile = Annotated[Path, typer.Argument(help="a file outside of the data directory", metavar="FILE")]
STYLES = {"ok": "green", "warning": "yellow", "error": "bold red"}


@app.command()
def doctor(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Check what a service needs here: Python, GPUs, Ray, ports, disk, database, checkpoints, permissions.

    Each line is ok, or says what to do. Nothing is changed, and a service may run meanwhile. Exits with 1 if something
    would keep a service or its trials from starting.
    """
    from scamp_service.upkeep.doctor import findings

    answers = []
    for answer in findings(lambda: settings_of(data_dir=data_dir)):
        answers.append(answer)
        if not as_json:
            style = STYLES[answer.level]
            out.print(f"[{style}]{answer.level:<8}[/]", end=" ", markup=True)
            out.print(f"{answer.name:<16} {answer.words}", markup=False, soft_wrap=True)
    if as_json:
        print(json.dumps([asdict(answer) for answer in answers]))
    if any(answer.level == "error" for answer in answers):
        raise typer.Exit(1)


@app.command()
def backup(file: BackupFile, data_dir: DataDir = None) -> None:
    """Write database, checkpoints, files of trials and calibrations into FILE, also while a service runs.

    FILE is replaced once the new one is whole. It has users' code and secrets: keep it private. Checkpoints in object
    storage stay where they are.
    """
    from scamp_service.upkeep.backup import backup as write

    settings = settings_of(data_dir=data_dir)
    manifest = write(settings, file)
    out.print(f"{file}: {len(manifest['sha256'])} files, {file.stat().st_size / 2**20:.1f} MiB", markup=False)
    if settings.checkpoint_url:
        out.print(f"checkpoints are not in it: they stay in {settings.checkpoint_url}", markup=False)


@app.command()
def restore(file: BackupFile, data_dir: DataDir = None) -> None:
    """Make a data directory from FILE, which `scamp backup` has written.

    The directory, the folder for checkpoints and a database of SCAMP_DATABASE_URL must be empty. Until all is restored
    and its checksums are right, no service starts there.
    """
    from scamp_service.upkeep.backup import restore as read

    settings = settings_of(data_dir=data_dir)
    manifest = read(settings, file)
    num_files = len(manifest["sha256"])
    out.print(f"{settings.data_dir}: {num_files} files restored; `scamp serve` continues its studies", markup=False)
