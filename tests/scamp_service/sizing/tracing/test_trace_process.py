"""How a trace process is asked again when the host fails it. Its child is a script here, and not the real server."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from scamp_service.errors import Unavailable
from scamp_service.sizing.tracing import trace_process
from scamp_service.sizing.tracing.trace_process import TraceFailed, TraceProcess
from tests.waiting import PATIENCE_SECONDS

CHILD = """
import json, os, sys
from pathlib import Path
tries = Path(sys.argv[1])
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    with open(tries, "a") as file:
        file.write("x")
    if len(tries.read_text()) <= int(sys.argv[2]):
        exec(sys.argv[3])
    print(json.dumps({"id": json.loads(line)["id"], "answer": 42}), flush=True)
"""
KILLED = "os.kill(os.getpid(), 9)"
FULL = """
        error = {"error": "No space left on device: /x", "kind": "host"}
        print(json.dumps({"id": json.loads(line)["id"], **error}), flush=True)
        continue
"""
Failing = Callable[..., TraceProcess]


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Failing:
    """A process whose first ``times`` requests are answered by running ``trick``."""

    def make(times: int, trick: str, pauses: tuple[float, float] = (0.01, 0.01)) -> TraceProcess:
        child = CHILD.replace("exec(sys.argv[3])", trick)
        command = [sys.executable, "-c", child, str(tmp_path / "tries"), str(times)]
        monkeypatch.setattr(trace_process, "COMMAND", command)
        monkeypatch.setattr(trace_process, "PAUSES_SECONDS", pauses)
        return TraceProcess()

    return make


@pytest.mark.parametrize("trick", [KILLED, FULL, "sys.exit(3)"], ids=["killed", "full disk", "ended"])
def test_a_request_that_the_host_fails_twice_is_answered_the_third_time(failing: Failing, trick: str) -> None:
    process = failing(2, trick)
    assert process.ask({}, 5) == {"answer": 42}
    process.end()


@pytest.mark.parametrize(
    ("trick", "reason"),
    [
        (KILLED, "the process that traces the model was killed by SIGKILL three times; the host may be out of memory"),
        (FULL, "No space left on device: /x three times; free some space on the host"),
        ("sys.exit(3)", "the process that traces the model ended with status 3 three times; the workload is not to"),
    ],
    ids=["killed", "full disk", "ended"],
)
def test_the_third_failure_names_the_true_reason_and_does_not_blame_the_workload(
    failing: Failing, tmp_path: Path, trick: str, reason: str
) -> None:
    process = failing(99, trick)
    with pytest.raises(TraceFailed) as failed:
        process.ask({}, 5)
    process.end()
    assert failed.value.reason.startswith(reason) and not failed.value.infeasible
    assert failed.value.may_pass == (trick == FULL), "a process that was killed may have been killed by this trace"
    assert len((tmp_path / "tries").read_text()) == 3


def test_what_a_request_needs_first_is_repeated_too() -> None:
    left = [Unavailable("locked"), OSError(28, "No space left on device")]

    def blob() -> str:
        if left:
            raise left.pop()
        return "bytes"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_process, "PAUSES_SECONDS", (0.0, 0.0))
        assert TraceProcess().persist(blob) == "bytes"


class Announced(threading.Event):
    """An event that says when a thread begins to wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_awaited = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.is_awaited.set()
        return super().wait(timeout)


def test_closing_does_not_wait_for_a_pause(failing: Failing) -> None:
    process, killed = failing(99, KILLED, (60.0, 60.0)), Announced()
    process._killed = killed

    def ask() -> None:
        with pytest.raises(TraceFailed):
            process.ask({}, 5)

    thread = threading.Thread(target=ask)
    thread.start()
    assert killed.is_awaited.wait(PATIENCE_SECONDS)
    process.kill()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    process.end()


def test_a_child_that_was_killed_between_two_requests_is_replaced(failing: Failing) -> None:
    """Its pipe is broken then, when the request is written and again when the pipe is closed."""
    process = failing(0, "pass")
    assert process.ask({}, 5) == {"answer": 42}
    pid = process.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert process.ask({}, 5) == {"answer": 42}
    process.end()
