"""Calls of functions, which measure work the same on every machine, whatever else runs on it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import count


def num_calls(work: Callable[[], object]) -> int:
    """The number of calls that this thread makes in ``work``, of functions of Python and of C."""
    calls = count()

    def see(frame: object, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            next(calls)

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        work()
    finally:
        sys.setprofile(before)
    return next(calls)
