"""Shared by the modules of the command line: the consoles that they print to, and the options of several commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from scamp_service.settings import Settings

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

StudyFile = Annotated[Path, typer.Argument(help="a study in YAML", metavar="STUDY.yaml")]
AsJson = Annotated[bool, typer.Option("--json", help="machine-readable output")]
WorkingDir = Annotated[Path | None, typer.Option(help="folder to send with the study's own workload file")]
DataDir = Annotated[
    Path | None, typer.Option(help="folder of the database, checkpoints and logs", envvar="SCAMP_DATA_DIR")
]


def settings_of(**given: Any) -> Settings:
    """Settings from the environment, overridden by the given values that are not empty."""
    return Settings(**{name: value for name, value in given.items() if value})
