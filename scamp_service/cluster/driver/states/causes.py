"""Why ranks and gangs end, in words for users."""

from __future__ import annotations

import re

_COLOUR = re.compile(r"\x1b\[[\d;]*m")


def cause_of_death(error: str, pid: int | None) -> str:
    """Why a rank's process has ended, as far as Ray's ``error`` says. ``pid`` is its process id, if known."""
    if "exits with a connection error" not in error:
        return cause_in(error)
    where = f"; its last words may be in Ray's log worker-*-{pid}.err" if pid is not None else ""
    return f"its process was killed (is the host short of memory?), crashed in native code, or called os._exit{where}"


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
