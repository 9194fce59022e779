"""Runs one request in a fork with a deadline and a memory limit; its answer comes back as a line through a pipe.

A workload that hangs, crashes or prints can spoil only its own answer. Another fork looks for what studies refuse.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import re
import resource
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import IO, Any

import torch

from estimators.model import Layout
from estimators.traits import Traits
from workloads.refusals import Stopped, deepest_lines
from workloads.sandbox.answers import MEMORY_BYTES, answer, error_answer
from workloads.sandbox.libraries import imported_since

WALL_FACTOR = 4  # seconds of wall-clock time allowed for each second of processor time
OUTPUT_BYTES = 20_000  # the end of the workload's output, where ``faulthandler`` writes the stack of a crash
_GRACE_SECONDS = 3  # for a fork that was stopped, to say where it was
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
    deadline = time.monotonic() + wall_seconds + _GRACE_SECONDS
    reply, output = _collect(result_read, output_read, deadline)
    ended = None if reply else _exit_of(child, deadline)
    processor_seconds = _end_group(child)
    os.close(result_read)
    os.close(output_read)
    if reply:
        result: dict[str, Any] = json.loads(reply)
        return result
    if ended is not None and ended.si_code == os.CLD_KILLED and ended.si_status == signal.SIGKILL:
        return error_answer("host", "the process that traces the model was killed by SIGKILL")  # as by the OOM killer
    where = deepest_lines(_stack(output), Path(request["code_dir"]) if request["code_dir"] else None)
    return error_answer("workload", "\n".join([*where, *_reason(ended, request["seconds"], processor_seconds)]))


def refusal_within(seconds: float, request: Mapping[str, Any], layout: Layout) -> str:
    """Why studies refuse the candidate of a request to trace, or its plan of this layout, in words.

    Empty if they train it, or if that is not known within ``seconds``. The fork is quiet, and does not debug.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from Python 3.12 on, of a fork where there are threads
        child = os.fork()
    if child == 0:
        try:
            os.setpgid(0, 0)
            die_with_parent()
            os.environ["PYTHONBREAKPOINT"] = "0"
            nothing = os.open(os.devnull, os.O_RDWR)
            for stream in range(3):
                os.dup2(nothing, stream)
            torch.set_num_threads(1)
            os.write(writing, _refusal(request, layout).encode()[: select.PIPE_BUF])
        finally:
            os._exit(0)
    with contextlib.suppress(PermissionError, ProcessLookupError):  # it does the same
        os.setpgid(child, child)
    os.close(writing)
    ready, _, _ = select.select([reading], [], [], seconds)
    line = os.read(reading, select.PIPE_BUF) if ready else b""
    _end_group(child)
    os.close(reading)
    return line.decode(errors="ignore")


def _refusal(request: Mapping[str, Any], layout: Layout) -> str:
    answered = answer({**request, "ask": "trace", "layout": asdict(Layout())})
    if "error" in answered:
        return f"studies refuse this candidate:\n{answered['error']}" if answered["kind"] == "workload" else ""
    if why := Traits(**answered["traits"]).refusal(layout):
        return f"studies refuse this plan: {why}"
    if layout == Layout():
        return ""
    answered = answer({**request, "ask": "trace", "layout": asdict(layout)})
    return f"studies refuse this plan: {answered['error']}" if answered.get("kind") == "workload" else ""


def _reason(ended: os.waitid_result | None, seconds: int, processor_seconds: float) -> tuple[str, str]:
    """(why there is no answer, what to do about it)"""
    if ended is None or ended.si_status == signal.SIGXCPU:
        stopped = _too_long(seconds, processor_seconds) if ended is None else _too_much(seconds)
        return stopped.problem, f"→ {stopped.advice}"
    if ended.si_code == os.CLD_EXITED:
        how, advice = "os._exit or a similar call", "raise an exception instead"
    else:
        how = f"signal {signal.Signals(ended.si_status).name}"
        advice = "look for a crash in native code, or for a machine that is out of memory"
    return f"ended the process that traced it (by {how})", f"→ {advice}"


def _too_long(seconds: int, processor_seconds: float) -> Stopped:
    """The end by wall-clock time: of code that waits, or of code that computes on a machine that is busy otherwise."""
    if WALL_FACTOR * processor_seconds < seconds:
        advice = "look for code that waits or downloads: at import, in the constructor, or where batches are made"
    else:
        advice = f"other processes keep the machine busy, or {_allow_more(seconds)}"
    took = f"took longer than {WALL_FACTOR * seconds:g} s, {processor_seconds:.1f} s of it processor time,"
    return Stopped(f"{took} and was stopped", advice)


def _too_much(seconds: int) -> Stopped:
    return Stopped(f"took more than {seconds} s of processor time and was stopped", _allow_more(seconds))


def _allow_more(seconds: int) -> str:
    return (
        f"look for a loop that does not end; for a large model, allow more: budget.trace_seconds: {4 * seconds} in a "
        f"study, --seconds {4 * seconds} on the command line"
    )


def _stack(output: bytes) -> list[tuple[str, int]]:
    """Files and line numbers that ``faulthandler`` has written where a process crashed, the deepest last."""
    lines = re.findall(r'^  File "(.+)", line (\d+) in ', output.decode(errors="replace"), re.MULTILINE)
    return [(file, int(line)) for file, line in reversed(lines)]


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
        own_pid, modules, environment = os.getpid(), set(sys.modules), dict(os.environ)
        answered = answer(request)
        if request.get("keeps_imports"):
            answered["imported"] = imported_since(modules, environment)
        if os.getpid() == own_pid:  # otherwise this is a fork that the user's code made and did not end
            os.write(result_write, json.dumps(answered).encode() + b"\n")
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


def _exit_of(child: int, deadline: float) -> os.waitid_result | None:
    """How the process ended; None if it runs longer. Pipes close before a process is gone, on a busy machine long."""
    while True:
        ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if ended is not None or time.monotonic() > deadline:
            return ended
        time.sleep(0.02)


def _end_group(leader: int) -> float:
    """Seconds of processor time that the leader has taken."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
    used = os.wait4(leader, 0)[2]
    return used.ru_utime + used.ru_stime


def _limit(seconds: int) -> None:
    """Limit this process's memory and time: mostly processor time, as wall-clock time would fail candidates on a busy
    machine. What takes too long is stopped by an exception, whose traceback shows where it was."""
    faulthandler.enable(all_threads=False)
    faulthandler.register(signal.SIGXCPU, all_threads=False, chain=True)
    began = time.process_time()
    signal.signal(signal.SIGPROF, _stop(lambda: _too_much(seconds)))
    signal.signal(signal.SIGALRM, _stop(lambda: _too_long(seconds, time.process_time() - began)))
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, WALL_FACTOR * seconds)
    most = seconds + _GRACE_SECONDS  # for native code, during which no Python handler runs
    _lower(resource.RLIMIT_CPU, most, most + 1)  # SIGXCPU, then SIGKILL
    match = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())
    held = int(match[1]) * 1024 if match else 0
    _lower(resource.RLIMIT_DATA, held + MEMORY_BYTES, held + MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _lower(kind: int, soft: int, hard: int) -> None:
    """Set a limit, except that a lower hard limit of this process stays."""
    most = resource.getrlimit(kind)[1]
    if most != resource.RLIM_INFINITY:
        soft, hard = min(soft, most), min(hard, most)
    resource.setrlimit(kind, (soft, hard))


def _stop(why: Callable[[], Stopped]) -> Callable[[int, FrameType | None], None]:
    def handler(number: int, frame: FrameType | None) -> None:
        raise why()

    return handler


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends; does nothing on systems other than Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
