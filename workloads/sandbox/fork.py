"""Runs one request in a fork with a deadline and a memory limit; its answer comes back as a line through a pipe.

A workload that hangs, crashes or prints can spoil only its own answer.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import resource
import select
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from workloads.sandbox.answers import MEMORY_BYTES, error_answer, profile

WALL_FACTOR = 4  # seconds of wall-clock time allowed for each second of processor time
OUTPUT_BYTES = 2000  # the end of the workload's output, kept in case its process dies
_PR_SET_PDEATHSIG = 1


def in_fork(request: Mapping[str, Any], protocol: tuple[IO[bytes], IO[bytes]]) -> dict[str, Any]:
    """The answer to ``request``, or an error answer where the fork is too slow or ends before it answers.

    ``protocol`` is the server's own pair of streams, which the fork closes.
    """
    result_read, result_write = os.pipe()
    output_read, output_write = os.pipe()
    child = os.fork()
    if child == 0:
        _serve_fork(request, protocol, result_write, output_write)
    os.setpgid(child, child)
    os.close(result_write)
    os.close(output_write)
    wall_seconds = WALL_FACTOR * request["seconds"]
    answer, output = _collect(result_read, output_read, time.monotonic() + wall_seconds)
    ended = None if answer else _exit_of(child)
    _end_group(child)
    os.close(result_read)
    os.close(output_read)
    if answer:
        result: dict[str, Any] = json.loads(answer)
        return result
    tail = output.decode(errors="replace")
    if ended is None:
        return error_answer(
            "workload",
            f"tracing the workload took longer than {wall_seconds:g} s and was stopped: look for code that waits or "
            "downloads when it is imported, in the constructor, build_model or train_batch",
            tail,
        )
    if ended.si_status == signal.SIGXCPU:
        return error_answer(
            "workload",
            f"tracing the workload took more than {request['seconds']} s of processor time and was stopped: look for "
            "a loop that does not end, or for slow preparation of data",
            tail,
        )
    if ended.si_code == os.CLD_EXITED:
        how, advice = "os._exit or a similar call", "raise an exception instead"
    else:
        how = f"signal {signal.Signals(ended.si_status).name}"
        advice = "look for a crash in native code, or for a machine that is out of memory"
    return error_answer("workload", f"the workload ended the process that traced it (by {how}): {advice}", tail)


def _serve_fork(
    request: Mapping[str, Any], protocol: tuple[IO[bytes], IO[bytes]], result_write: int, output_write: int
) -> None:
    """Answer the request in the fork; never returns. Processes that the user's code forks end with its group."""
    try:
        os.setpgid(0, 0)
        die_with_parent()
        for stream in protocol:
            os.close(stream.fileno())
        os.dup2(output_write, 1)
        os.dup2(output_write, 2)
        _limit(request["seconds"])
        own = os.getpid()
        answer = profile(request)
        if os.getpid() == own:  # otherwise this is a fork that the user's code made and did not end
            os.write(result_write, json.dumps(answer).encode() + b"\n")
    finally:
        os._exit(0)


def _collect(result: int, output: int, deadline: float) -> tuple[bytes, bytes]:
    """The line with the result, and the end of the output. The line is empty if the fork ended or was too slow."""
    line, tail, open_pipes = b"", b"", [result, output]
    while result in open_pipes and not line.endswith(b"\n"):
        ready, _, _ = select.select(open_pipes, [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        for pipe in ready:
            data = os.read(pipe, 65536)
            if not data:
                open_pipes.remove(pipe)
            elif pipe == result:
                line += data
            else:
                tail = (tail + data)[-OUTPUT_BYTES:]
    return (line if line.endswith(b"\n") else b""), tail


def _exit_of(child: int) -> os.waitid_result | None:
    """How the process ended; None if it still runs after a second. Pipes close shortly before a process is gone."""
    for _ in range(20):
        ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if ended is not None:
            return ended
        time.sleep(0.05)
    return None


def _end_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
    os.waitpid(leader, 0)


def _limit(seconds: int) -> None:
    """Limit this process's memory and processor time; wall-clock time would fail candidates on a busy machine."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))  # SIGXCPU, then SIGKILL
    match = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())
    held = int(match[1]) * 1024 if match else 0
    resource.setrlimit(resource.RLIMIT_DATA, (held + MEMORY_BYTES, held + MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends; does nothing on systems other than Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
