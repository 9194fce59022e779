"""Shared by the commands that need no service: progress, settings, and options of several commands."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from scamp.addresses import running_server
from scamp.cli.terminal import err
from scamp_service.errors import InvalidInput

if TYPE_CHECKING:
    from scamp_service.settings import Settings

AT_ONCE_SECONDS = 0.2
"""How long nothing is said: answers that were kept come sooner."""
MEASURE_SECONDS = 30.0
"""How long somebody waits at a terminal for this machine to be measured."""
What = Annotated[
    str,
    typer.Argument(
        help="a study (FILE.yaml), a built-in workload, or a class or function that makes the model: FILE.py:Class, "
        "FILE.py:function, package.module:function",
        metavar="WHAT",
    ),
]
Param = Annotated[
    list[str] | None, typer.Option(help="set a parameter (NAME=VALUE), overriding the study's value; repeatable")
]
Kind = Annotated[
    str | None, typer.Option("--device", help="kind of GPU, such as H100; default: virtual devices", metavar="KIND")
]
Count = Annotated[
    int | None,
    typer.Option(help="number of devices; default: 1 with --device, otherwise SCAMP_VIRTUAL_DEVICES (4)", min=1),
]
Mib = Annotated[
    int | None,
    typer.Option(
        help="MiB that may be used of each device; default: all that a GPU of --device offers, SCAMP_DEVICE_MIB (96) "
        "for a study, otherwise any size",
        min=1,
    ),
]
Seconds = Annotated[int, typer.Option(help="seconds of processor time that each trace may take", min=1, metavar="N")]
Rounds = Annotated[int, typer.Option(help="how often the CPU is measured; once is quick, and less certain", min=1)]
DataDir = Annotated[
    Path | None,
    typer.Option(help="folder of the database, checkpoints, logs, traces and calibrations", envvar="SCAMP_DATA_DIR"),
]


def settings_of(**options: Any) -> Settings:
    """Settings from the environment, overridden by the given values that are not empty."""
    from scamp_service.settings import Settings  # imported here: its models take a fifth of a second

    return Settings(**{name: value for name, value in options.items() if value})


def measure_once(settings: Settings) -> None:
    """Measure the CPU in some seconds if its speed is not known and somebody waits at a terminal, but not for long.

    No effect while a service uses the data directory: its ranks may be at work, and it measures when they are not.
    """
    from scamp_service.sizing.calibration import calibrate_cpu_quickly, calibrated

    if not err.is_terminal or calibrated(settings.data_dir) is not None or running_server(settings.data_dir):
        return
    with err.status("measuring the speed of this machine once, to predict step times (about 8 s) …"):
        try:
            kind = calibrate_cpu_quickly(settings.data_dir, MEASURE_SECONDS)
        except InvalidInput as error:
            err.print(f"{error}; no step times are predicted", markup=False, soft_wrap=True)
            return
    took = f"in {kind.quick_seconds:.0f} s, to predict step times"
    err.print(f"measured {kind.name} {took}; `scamp calibrate` is more exact", markup=False, soft_wrap=True)


@contextmanager
def progress(under_way: object, at_once: str = "") -> Iterator[None]:
    """Say on stderr what is traced, whose text is ``str(under_way)``: at once if there is any, with the words
    ``at_once``, then after two seconds, and from there every second in a terminal and every ten seconds elsewhere."""
    done = threading.Event()
    with err.status("tracing …") as status:

        def show() -> None:
            for pause in itertools.chain([AT_ONCE_SECONDS, 2], itertools.repeat(1 if err.is_terminal else 10)):
                if done.wait(pause):
                    return
                if not (text := str(under_way)):
                    continue
                text = f"tracing {text}{at_once if pause == AT_ONCE_SECONDS else ''}"
                status.update(Text(text))
                if not err.is_terminal:
                    err.print(text, markup=False, soft_wrap=True)

        thread = threading.Thread(target=show, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
