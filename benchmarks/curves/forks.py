"""Runs functions in forks of one warm process, so that a crash or a hang of users' code ends only its own fork.

A function is named, not sent: the forks call ``trace_layout`` or ``train_rank`` of ``benchmarks.curves.running``.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, Any

HANGS = "hangs"
CRASHED = "crashed"


@dataclass(frozen=True, slots=True)
class Fork:
    """A running fork, the pipe that its answer comes from, and the file of its errors."""

    pid: int
    pipe: int
    errors: IO[str]


def in_forks(calls: Sequence[Callable[[], Any]], seconds: float) -> list[Any]:
    """The JSON answers of ``calls``, which run at the same time, each in a fork.

    An answer is ``HANGS`` if the fork had to be killed after ``seconds``, and ``CRASHED`` if it ended without one: its
    errors are printed. When a fork crashes, the others have a few seconds more: they wait for it.
    """
    forks = [_fork(call) for call in calls]
    answers: dict[int, Any] = {}
    texts = {fork.pipe: b"" for fork in forks}
    deadline = time.monotonic() + seconds
    while texts.keys() - answers.keys() and time.monotonic() < deadline:
        waiting = list(texts.keys() - answers.keys())
        for pipe in select.select(waiting, [], [], max(0.0, deadline - time.monotonic()))[0]:
            data = os.read(pipe, 65536)
            texts[pipe] += data
            if not data:
                answers[pipe] = json.loads(texts[pipe]) if texts[pipe] else CRASHED
                if answers[pipe] == CRASHED:
                    deadline = min(deadline, time.monotonic() + 5.0)
    for fork in forks:
        with contextlib.suppress(ProcessLookupError):
            os.kill(fork.pid, signal.SIGKILL)
        _, status = os.waitpid(fork.pid, 0)
        os.close(fork.pipe)
        with fork.errors as errors:
            if answers.get(fork.pipe) == CRASHED:
                errors.seek(0)
                code = os.waitstatus_to_exitcode(status)
                print(f"A fork crashed with exit code {code}:", errors.read()[-4000:], file=sys.stderr)
    return [answers.get(fork.pipe, HANGS) for fork in forks]


def limited(call: Callable[[], Any], seconds: int, num_bytes: int | None = None) -> Any:
    """The answer of ``call`` in a process that may take so many seconds of processor time and bytes of memory."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    if num_bytes is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (num_bytes, num_bytes))
    return call()


def _fork(call: Callable[[], Any]) -> Fork:
    read, write = os.pipe()
    errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - in_forks closes it
    pid = os.fork()
    if pid:
        os.close(write)
        return Fork(pid, read, errors)
    try:
        gc.freeze()  # what the parent left to collect (Ray's objects, say) may need threads that a fork lacks
        os.close(read)
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 1)
        os.dup2(errors.fileno(), 2)
        text = json.dumps(call()).encode()
        while text:
            text = text[os.write(write, text) :]
        os._exit(0)
    except BaseException:
        errors.write(traceback.format_exc())
        errors.flush()
    finally:
        os._exit(1)
