"""The commands of those who run a service: what keeps it from starting."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer

from scamp.cli.terminal import AsJson, out
from scamp_service.cli.terminal import DataDir, settings_of

app = typer.Typer()
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
