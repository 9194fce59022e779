"""Shared by the modules of the command line: consoles that print text as it is, and options of several commands."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console, ConsoleDimensions, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from scamp.errors import InvalidInput
from scamp.yaml_numbers import as_number

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

StudyFile = Annotated[Path, typer.Argument(help="a study in YAML", metavar="STUDY.yaml")]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="a change of the study, such as budget.trials=40; may be repeated"),
]
AsJson = Annotated[bool, typer.Option("--json", help="machine-readable output")]
WorkingDir = Annotated[Path | None, typer.Option(help="folder to send with the study's own workload file")]


def params_of(assignments: list[str] | None, argument: str = "--param") -> dict[str, Any]:
    """Parameters given as NAME=VALUE, with the values that a study would read. Raises ``InvalidInput``.

    ``argument`` says where the user gives them.
    """
    import yaml  # imported here: few commands need it

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
