"""Shared by the modules of the command line: consoles, progress, and the options of several commands."""

from __future__ import annotations

import io
import itertools
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
import yaml
from rich.console import Console, ConsoleDimensions, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from scamp_service.errors import InvalidInput
from scamp_service.settings import Settings
from workloads.yaml_numbers import as_number

AT_ONCE_SECONDS = 0.2
"""How long nothing is said: answers that were kept come sooner."""
MEASURE_SECONDS = 30.0
"""How long somebody waits at a terminal for this machine to be measured."""
ENDLESS = 100_000
"""Characters of a line that is not wrapped."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def plain(text: str) -> str:
    """``text`` with control characters but tab and newline made visible, as in ``\\x1b[2J``.

    A user's code may print anything, and a terminal obeys escape codes: they move the cursor, set the title, or answer.
    """
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


class PlainStream(io.StringIO):
    """Stream that writes ``plain`` text to a terminal."""

    def __init__(self, terminal: TextIO) -> None:
        super().__init__()
        self._terminal = terminal

    def write(self, text: str) -> int:
        """Write text, which the terminal does not obey."""
        self._terminal.write(plain(text))
        return len(text)


def escape_what_cannot_be_shown() -> None:
    """Let characters that the terminal's encoding lacks be printed as escapes; otherwise they end a command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def utf8_file(path: Path | None) -> Iterator[TextIO]:
    """A file to write, or standard output without one, in UTF-8 in every locale: programs read it.

    A terminal gets ``plain`` text.
    """
    if path is not None:
        with path.open("w", encoding="utf-8", newline="") as file:
            yield file
        return
    if sys.stdout.isatty():
        yield PlainStream(sys.stdout)
        return
    sys.stdout.flush()
    stream = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", newline="")
    try:
        yield stream
    finally:
        stream.detach()  # which writes the rest, and leaves standard output open


def whole_number(text: str) -> int:
    """The number that digits are. Python would read ``1_0`` as ten, too."""
    if not re.fullmatch(r"-?[0-9]+", text):
        raise typer.BadParameter(f"{text!r} is not a whole number")
    return int(text)


class _PlainConsole(Console):
    """A console that prints text, also in tables, without obeying it: neither escape codes nor markup.

    Lines are wrapped only in a terminal, or at ``COLUMNS``: what is piped is read by programs.
    """

    @property  # type: ignore[misc]  # nobody sets it
    def size(self) -> ConsoleDimensions:
        if self.is_terminal or "COLUMNS" in os.environ:
            return super().size
        return ConsoleDimensions(ENDLESS, 25)

    def render_str(self, text: str, **options: Any) -> Text:
        """The text with its final width, by which columns of tables are measured."""
        return super().render_str(plain(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The parts of what is printed; the console's own escape codes are styles and control segments."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=plain(segment.text))


out = _PlainConsole(highlight=False, markup=False)
err = _PlainConsole(stderr=True, highlight=False, markup=False)

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
StudyFile = Annotated[Path, typer.Argument(help="a study in YAML", metavar="STUDY.yaml")]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="a change of the study, such as budget.trials=40; may be repeated"),
]
AsJson = Annotated[bool, typer.Option("--json", help="machine-readable output")]
WorkingDir = Annotated[Path | None, typer.Option(help="folder to send with the study's own workload file")]
Seconds = Annotated[int, typer.Option(help="seconds of processor time that each trace may take", min=1, metavar="N")]
Rounds = Annotated[int, typer.Option(help="how often the CPU is measured; once is quick, and less certain", min=1)]
DataDir = Annotated[
    Path | None,
    typer.Option(help="folder of the database, checkpoints, logs, traces and calibrations", envvar="SCAMP_DATA_DIR"),
]


def settings_of(**options: Any) -> Settings:
    """Settings from the environment, overridden by the given values that are not empty."""
    return Settings(**{name: value for name, value in options.items() if value})


def params_of(assignments: list[str] | None, argument: str = "--param") -> dict[str, Any]:
    """Parameters given as NAME=VALUE, with the values that a study would read. Raises ``InvalidInput``.

    ``argument`` says where the user gives them.
    """
    params: dict[str, Any] = {}
    for text in assignments or []:
        name, equals, value = text.partition("=")
        try:
            read = yaml.safe_load(value) if name and equals else None
        except yaml.YAMLError:
            read = value
        if not isinstance(read, str | int | float | bool):
            raise InvalidInput(f"{argument} wants NAME=VALUE with a number, a word, true or false; got {text!r}")
        params[name] = as_number(read)
    return params


def measure_once(settings: Settings) -> None:
    """Measure the CPU in some seconds if its speed is not known and somebody waits at a terminal, but not for long.

    No effect while a service uses the data directory: its ranks may be at work, and it measures when they are not.
    """
    from scamp_service.processes.addresses import running_server
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
