"""Shared by the modules of the command line: consoles, progress, and the options of several commands."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
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
Seconds = Annotated[int, typer.Option(help="seconds of processor time that each trace may take", min=1, metavar="N")]
DataDir = Annotated[
    Path | None, typer.Option(help="folder of the database, checkpoints and logs", envvar="SCAMP_DATA_DIR")
]


def settings_of(**given: Any) -> Settings:
    """Settings from the environment, overridden by the given values that are not empty."""
    return Settings(**{name: value for name, value in given.items() if value})


@contextmanager
def progress(under_way: object) -> Iterator[None]:
    """Say on stderr what is traced, whose text is ``str(under_way)``: from the second second on, every second in a
    terminal and every ten seconds elsewhere."""
    done = threading.Event()
    with err.status("tracing …") as status:

        def tell() -> None:
            for pause in itertools.chain([2], itertools.repeat(1 if err.is_terminal else 10)):
                if done.wait(pause):
                    return
                text = f"tracing {under_way or '…'}"
                status.update(text)
                if not err.is_terminal:
                    err.print(text, markup=False, soft_wrap=True)

        thread = threading.Thread(target=tell, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
