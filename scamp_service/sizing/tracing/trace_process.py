"""One child process that traces (``workloads.sandbox``): starts it, sends requests, and replaces it when it is lost."""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from scamp_service.errors import Unavailable
from scamp_service.model import Json
from scamp_service.user_account import Lent
from scamp_service.user_process import start_for_user

log = logging.getLogger("scamp.tracing")

COMMAND = [sys.executable, "-m", "workloads.sandbox"]
START_SECONDS = 120.0
PAUSES_SECONDS = (1.0, 5.0)
"""Pauses before the second and the third try, for a host that is short of memory or disk."""
WALL_FACTOR = 5  # the child itself ends a trace after 4 times its processor time

_Answer = TypeVar("_Answer")


class TraceFailed(Exception):
    """A trace failed: because the workload refuses the parameters (``infeasible``), by a fault of the workload, or
    because the host failed it again and again; the reason says which. ``may_pass`` is true for a host whose disk or
    database cannot be used. A child that was killed again and again may have been killed by the trace itself.
    """

    def __init__(self, reason: str, *, infeasible: bool, may_pass: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.infeasible, self.may_pass = reason, infeasible, may_pass

    @property
    def reason_in_one_line(self) -> str:
        return " ".join(self.reason.splitlines())


class Interrupted(Exception):
    """A request was ended by ``TraceProcess.interrupt``; it may be made again."""


class _HostFailed(Exception):
    """The host failed a request, for a reason that may pass."""


class _Lost(_HostFailed):
    """The child has died or does not answer."""


class TraceProcess:
    """A child process, and its replacement when it is lost. It runs as ``SCAMP_USER_CODE_USER`` if that is set.

    Use it from one thread only, whose children die with it. ``kill`` and ``interrupt`` may be called from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._killed = threading.Event()
        self._is_asked = self._is_interrupted = False
        self._num_asked = 0
        self._unread = b""
        self._lent: Lent | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the child; None while there is none."""
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        """Start the child unless it runs. Returns at once, while the child warms up.

        Raises ``Refused`` when it cannot run as the user that is set for it.
        """
        with self._lock:
            if self._killed.is_set() or self._child is not None:
                return
            self._child, self._lent = start_for_user(COMMAND)
            self._unread = b""

    def ask(self, request: Mapping[str, Any], seconds: int) -> Json:
        """The child's answer. Raises ``Interrupted``, and ``TraceFailed`` for an error or the third fault of the host.

        ``seconds`` limits the processor time of the request.
        """
        return self.persist(lambda: self._ask(request, seconds))

    def persist(self, work: Callable[[], _Answer]) -> _Answer:
        """The result of ``work``, which is repeated after a pause when the host fails it.

        That is: the child is lost, the disk is full, or the study database cannot be used. Raises ``TraceFailed`` with
        the reason at the third time: the workload is not to blame.
        """
        for pause in (*PAUSES_SECONDS, None):
            try:
                return work()
            except (_HostFailed, Unavailable, OSError) as fault:
                if isinstance(fault, _Lost):
                    self.end()
                    if self._is_interrupted:
                        raise Interrupted from fault
                if pause is None or self._killed.wait(pause):
                    may_pass = not isinstance(fault, _Lost)
                    raise TraceFailed(_final(fault), infeasible=False, may_pass=may_pass) from fault
                log.warning("%s: trying again", fault)
        raise AssertionError

    def kill(self) -> None:
        """End the child permanently. A caller that waits for it gets an error. ``end`` must follow."""
        with self._lock:
            self._killed.set()
            if self._child is not None:
                self._child.kill()

    def interrupt(self) -> None:
        """End the child if it works on a request, whose caller gets ``Interrupted``."""
        with self._lock:
            if self._is_asked and self._child is not None:
                self._is_interrupted = True
                self._child.kill()

    def end(self) -> None:
        """End the child and close its pipes. The kernel kills the processes that it has forked with it."""
        with self._lock:
            child, self._child = self._child, None
            lent, self._lent = self._lent, None
        if child is not None:
            child.kill()
            with suppress(BrokenPipeError), child:  # closes the pipes and waits; it had not read all of a request
                pass
        if lent is not None:
            lent.remove()

    def _ask(self, request: Mapping[str, Any], seconds: int) -> Json:
        self.start()
        child = self._child
        if child is None or child.stdin is None:
            raise _Lost("the process that traces the model was closed")
        self._num_asked += 1
        line = json.dumps({**self._readable(request), "id": self._num_asked, "seconds": seconds}).encode() + b"\n"
        with self._lock:
            self._is_asked, self._is_interrupted = True, False
        try:
            child.stdin.write(line)
            child.stdin.flush()
            return self._answer(child, time.monotonic() + START_SECONDS + WALL_FACTOR * seconds)
        except OSError as error:
            raise _Lost(_end_of(child)) from error
        finally:
            with self._lock:
                self._is_asked = False

    def _readable(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """The request, with copies of the user's files where the child runs as a user who cannot read ours."""
        lent = self._lent
        if lent is None or not request.get("code_zip"):
            return request
        code_zip = lent.copy(Path(request["code_zip"]))
        return {**request, "code_zip": str(code_zip), "code_dir": str(lent.unpacked / code_zip.stem)}

    def _answer(self, child: subprocess.Popen[bytes], deadline: float) -> Json:
        """Answer to the latest request, without its id."""
        while True:
            answer: dict[str, Any] = json.loads(self._line(child, deadline))
            if answer.pop("id", None) == self._num_asked:
                break
        if "error" in answer:
            if answer["kind"] == "host":
                raise _HostFailed(answer["error"])
            raise TraceFailed(answer["error"], infeasible=answer["kind"] == "params")
        return answer

    def _line(self, child: subprocess.Popen[bytes], deadline: float) -> bytes:
        assert child.stdout is not None
        while b"\n" not in self._unread:
            ready, _, _ = select.select([child.stdout], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(child.stdout.fileno(), 65536) if ready else b""
            if not data:
                raise _Lost(_end_of(child) if ready else "the process that traces the model did not answer")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line


def _end_of(child: subprocess.Popen[bytes]) -> str:
    """How the child ended, in words. Its pipes close shortly before it is gone."""
    try:
        status = child.wait(1.0)
    except subprocess.TimeoutExpired:
        return "the process that traces the model closed its pipes"
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    return f"the process that traces the model {how}"


def _final(fault: Exception) -> str:
    advice = {"SIGKILL": "the host may be out of memory", "No space": "free some space on the host"}
    hints = (words for sign, words in advice.items() if sign in str(fault))
    return f"{fault} three times; {next(hints, 'the workload is not to blame: see the log of the service')}"
