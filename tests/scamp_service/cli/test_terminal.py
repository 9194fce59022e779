from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from scamp_service.cli import terminal
from scamp_service.cli.terminal import err, out, plain, progress


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


def test_whoever_waits_is_told_what_is_traced_from_the_second_second_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with progress("single 2 s"):
        time.sleep(2.3)
    assert capsys.readouterr().err == "tracing single 2 s\n"


def test_a_quick_answer_comes_without_progress(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("single 0 s"):
        time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_without_a_terminal_a_line_comes_every_ten_seconds_only(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    class Done:
        def wait(self, seconds: float) -> bool:
            waited.append(seconds)
            return len(waited) > 3

        def set(self) -> None: ...

    monkeypatch.setattr(terminal, "threading", SimpleNamespace(Event=Done, Thread=threading.Thread))
    with progress("single 2 s"):
        time.sleep(0.1)
    assert waited == [2, 10, 10, 10]
