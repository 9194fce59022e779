"""Output is plain and shows control characters, and progress is told while a trace is made."""

from __future__ import annotations

import io
import threading
from types import SimpleNamespace

import pytest
from rich.console import Group
from rich.table import Table
from rich.text import Text

from scamp.cli.terminal import PlainStream, _PlainConsole, err, out, params_of, plain
from scamp_service.cli import terminal
from scamp_service.cli.terminal import progress
from scamp_service.errors import InvalidInput
from tests.waiting import PATIENCE_SECONDS, until


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J\x1b]0;owned\x07", r"\x1b[2J\x1b]0;owned\x07"),
        ("50 %\r100 %", r"50 %\x0d100 %"),
        ("\x9b31m", r"\x9b31m"),
        ("a\tb\nc é 日本 😀", "a\tb\nc é 日本 😀"),
    ],
)
def test_control_characters_are_shown_and_not_obeyed(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_whatever_is_printed_as_text_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    out.print("\x1b[31m", markup=False)
    err.print("\x1b[31m", markup=False)
    assert capsys.readouterr() == ("\\x1b[31m\n", "\\x1b[31m\n")
    table = Table("\x1b]0;heading", box=None)
    table.add_row("[/]\x1b[2J")
    out.print(Group(table, Text("\x9b31m", "bold")))
    shown = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert shown == ["\\x1b]0;heading", "[/]\\x1b[2J", "\\x9b31m"]


def test_a_terminal_shows_the_escape_codes_of_a_table_that_is_written_to_it() -> None:
    terminal = io.StringIO()
    PlainStream(terminal).write("number,reason\n0,\x1b[2J\n")
    assert terminal.getvalue() == "number,reason\n0,\\x1b[2J\n"


def test_styles_and_progress_still_reach_a_terminal() -> None:
    terminal = io.StringIO()
    console = _PlainConsole(file=terminal, force_terminal=True, color_system="standard", highlight=False, markup=False)
    console.print(Text("x\x1b", "red"))
    assert terminal.getvalue() == "\x1b[31mx\\x1b\x1b[0m\n"
    console.show_cursor(False)
    assert terminal.getvalue().endswith("\x1b[?25l")


def test_whoever_waits_is_told_what_is_traced_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("single 0 s", at_once="; torch starts first"):
        said = until(lambda: capsys.readouterr().err, "the first line")
    assert said.startswith("tracing single 0 s; torch starts first\n")


def test_a_kept_answer_comes_without_progress(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "AT_ONCE_SECONDS", PATIENCE_SECONDS)
    with progress("single 0 s"):
        pass
    assert capsys.readouterr().err == ""


def test_without_a_terminal_a_line_comes_every_ten_seconds_only(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    class Done:
        def wait(self, seconds: float) -> bool:
            waited.append(seconds)
            return len(waited) > 4

        def set(self) -> None: ...

    monkeypatch.setattr(terminal, "threading", SimpleNamespace(Event=Done, Thread=threading.Thread))
    with progress("single 2 s"):
        pass
    assert waited == [terminal.AT_ONCE_SECONDS, 2, 10, 10, 10]


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ("1e-3", 0.001),
        ("-2E+4", -20_000.0),
        ("1.5e-3", 0.0015),
        ("4", 4),
        ("0.5", 0.5),
        ("true", True),
        ("wide", "wide"),
    ],
)
def test_a_parameter_has_the_value_that_a_study_would_read(value: str, read: object) -> None:
    (value_read,) = params_of([f"x={value}"]).values()
    assert value_read == read and type(value_read) is type(read)


@pytest.mark.parametrize("text", ["x", "x=", "=1", "x=[1]"])
def test_a_parameter_without_a_name_or_a_plain_value_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="--param wants NAME=VALUE"):
        params_of([text])


def test_a_wrong_parameter_of_an_argument_is_refused_without_an_option() -> None:
    with pytest.raises(InvalidInput, match=r"^each parameter wants NAME=VALUE .*; got 'lr'"):
        params_of(["lr"], "each parameter")
