"""What the modules of the command line have in common: where they print, and options that several commands take."""

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
WorkingDir = Annotated[Path | None, typer.Option(help="send this folder along with the study's own workload file")]
DataDir = Annotated[Path | None, typer.Option(help="database, checkpoints and logs", envvar="SCAMP_DATA_DIR")]


def settings_of(**given: Any) -> Settings:
    """Those of the environment, and in their place what was given and is not empty."""
    return Settings(**{name: value for name, value in given.items() if value})
