"""Why ranks and gangs end, in words for users."""

from __future__ import annotations

import re

_COLOUR = re.compile(r"\x1b\[[\d;]*m")

_CRASH = "Fatal Python error"  # ``faulthandler`` begins so, before the stack
_MOST_LINES, _MOST_CHARACTERS = 8, 600


def cause_of_death(error: str, pid: int | None, stderr: str = "") -> str:
    """Why a rank's process has ended, as far as Ray's ``error`` and the end of its ``stderr`` say.

    ``pid`` is its process id, if known; ``stderr`` is empty if its host is another one.
    """
    if "exits with a connection error" not in error:
        return cause_in(error)
    why = "its process was killed (is the host short of memory?), crashed in native code, or called os._exit"
    if pid is None:
        return why
    if words := last_words(stderr):
        return f"{why}; Ray's log worker-*-{pid}.err ends with: {words}"
    return f"{why}; its last words may be in Ray's log worker-*-{pid}.err on its host"


def last_words(stderr: str) -> str:
    """The beginning of the last crash in ``stderr``, or else its last lines, as one line; Ray's own lines left out."""
    lines = [line.strip() for line in stderr.splitlines()]
    lines = [line for line in lines if line and not line.startswith((":", "[", "Extension modules"))]
    crashes = [number for number, line in enumerate(lines) if line.startswith(_CRASH)]
    chosen = lines[crashes[-1] :][:_MOST_LINES] if crashes else lines[-_MOST_LINES:]
    return " | ".join(chosen)[:_MOST_CHARACTERS]


def cause_in(error: str) -> str:
    """The line of Ray's ``error`` that says why: the last one of a traceback, otherwise the first one."""
    text = _COLOUR.sub("", error)
    first, *rest = text.strip().splitlines() or [""]
    return first_line(rest[-1] if "ray::" in first and rest else first)


def silence_reason(seconds: float, *, is_starting: bool) -> str:
    """Says that a rank has not answered for ``seconds``, and what the reason may be."""
    why = f"has not answered for {seconds:.0f} s"
    return why if is_starting else f"{why}: it was frozen, or its code held Python's lock in one long call"


def first_line(text: str) -> str:
    """The first line that is not empty, cut at 300 characters."""
    return next(iter(text.strip().splitlines()), "")[:300]
