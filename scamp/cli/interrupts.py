"""Ctrl-C: one line and exit code 130 at any time, never a traceback."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Any

EXIT_CODE = 130
AGAIN_SECONDS = 0.05


def end_at_once() -> None:
    """Have Ctrl-C end this process at once, with its line: nothing has begun yet. No effect where it is ignored."""
    _handle(_end_with_words)


def raise_on_interrupt() -> None:
    """Have Ctrl-C raise ``KeyboardInterrupt``, so that what was begun is ended in order. No effect where it is ignored.

    Python discards what is raised in some callbacks, such as those of imports and of garbage; it is raised again then.
    """
    _handle(signal.default_int_handler)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    sys.unraisablehook = _raise_again


def end_silently() -> None:
    """Have a further Ctrl-C end this process at once: it has been interrupted, has said so, and is about to end."""
    _handle(_end)


def _handle(handler: Any) -> None:
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as in background jobs of a shell
        signal.signal(signal.SIGINT, handler)


def _raise_again(discarded: Any) -> None:
    if issubclass(discarded.exc_type, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)
    else:
        sys.__unraisablehook__(discarded)


def _end_with_words(number: int, frame: FrameType | None) -> None:
    os.write(2, b"scamp: interrupted\n")
    os._exit(EXIT_CODE)


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(EXIT_CODE)
