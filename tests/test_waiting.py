"""No test needs an idle machine: every wait has one long limit, and nothing must be done within some seconds."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.conftest import ROOT
from tests.waiting import PATIENCE_SECONDS, until

WAITS = {"wait", "join", "result", "communicate", "settimeout", "timeout"}
CLOCKS = {"monotonic", "perf_counter", "process_time", "time"}
_MAY_HAVE_A_LIMIT = re.compile(rf"({'|'.join(WAITS)})\(\d|timeout=\d|({'|'.join(CLOCKS)})\(\) - ")


def short_limits_in(source: str) -> Iterator[int]:
    """Lines in which a wait of some seconds is limited, or in which a duration must be short.

    A limit of at most a second is one that a test waits for.
    """
    if not _MAY_HAVE_A_LIMIT.search(source):  # parsing takes most of the time
        return
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(attr=name), args=[limit]) if name in WAITS and _is_short(limit):
                yield node.lineno
            case ast.keyword(arg="timeout", value=limit) if _is_short(limit):
                yield limit.lineno
            case ast.Compare(
                left=ast.BinOp(left=ast.Call(func=ast.Attribute(attr=clock)), op=ast.Sub()), ops=[ast.Lt() | ast.LtE()]
            ) if clock in CLOCKS:
                yield node.lineno


def _is_short(limit: ast.expr) -> bool:
    match limit:
        case ast.Constant(value=int() | float() as seconds):
            return 1 < seconds < PATIENCE_SECONDS
        case _:
            return False


@pytest.mark.full
def test_no_test_needs_an_idle_machine() -> None:
    lines = [
        f"{file.relative_to(ROOT)}:{line}"
        for file in sorted((ROOT / "tests").rglob("*.py"))
        for line in short_limits_in(file.read_text())
    ]
    assert lines == [], "take PATIENCE_SECONDS of tests/waiting.py, or count calls (tests/calls.py)"


@pytest.mark.parametrize(
    "source",
    [
        "assert event.wait(10)",
        "thread.join(2.5)",
        "@pytest.mark.timeout(60)\ndef test(): ...",
        "subprocess.run(command, timeout=60)",
        "assert time.monotonic() - began < 5",
        "assert time.process_time() - began <= limit",
    ],
)
def test_a_short_limit_is_found(source: str) -> None:
    assert list(short_limits_in(source)) == [1]


@pytest.mark.parametrize(
    "source", ["event.wait(0.1)", "thread.join(PATIENCE_SECONDS)", '", ".join(words)', "time.monotonic() < deadline"]
)
def test_other_limits_are_not_found(source: str) -> None:
    assert list(short_limits_in(source)) == []


def test_a_wait_ends_with_the_first_true_answer() -> None:
    answers = iter([None, 0, "", 7, 8])
    assert until(lambda: next(answers), "an answer") == 7


def test_what_never_comes_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.waiting.PATIENCE_SECONDS", 0.0)
    with pytest.raises(AssertionError, match="not within 0 s: the end of time"):
        until(lambda: False, "the end of time")
