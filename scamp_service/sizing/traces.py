"""Traces of candidates as the controller gets them: from a child process (``workloads.sandbox.server``), or remembered.

The controller itself never imports torch or a user's code. It decides nothing: which layouts are worth a trace is the
planner's business, asked by ``sizing``.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from estimators.model import Layout, ModelProfile, PeakCurve
from estimators.peaks.envelope import curve_from_json
from estimators.peaks.reserved import ReservedCurve
from estimators.peaks.step_log import StepLog
from estimators.peaks.units import Unit
from estimators.work import StepWork
from scamp_service.model import Json
from scamp_service.settings import ROOT

log = logging.getLogger("scamp.tracing")

START_SECONDS = 120.0
WALL_FACTOR = 5  # the child ends a trace after 4 times its processor time by itself
# What the protocol names as a pure number of the optimizer: only its sign can change what is allocated.
NUMBERS = frozenset({"lr", "weight_decay"})


@dataclass(frozen=True, slots=True)
class Trace:
    """What one layout of a candidate has shown. ``batch`` is the candidate's effective batch; ``alike`` says whether a
    few of its blocks have told of all, ``log`` is None where sizes are not affine, and ``units`` are those of the plain
    layout."""

    batch: int
    curve: PeakCurve
    structure: str
    num_params: int
    state_bytes: int
    work: StepWork
    alike: bool
    log: StepLog | None = None
    units: tuple[Unit, ...] = ()

    @classmethod
    def from_json(cls, data: Json) -> Trace:
        """Raises KeyError, TypeError or ValueError on anything but a whole answer of the child."""
        return cls(
            int(data["batch"]),
            curve_from_json(data["curve"]),
            str(data["structure"]),
            int(data["num_params"]),
            int(data["state_bytes"]),
            StepWork.from_json(data["work"]),
            bool(data["alike"]),
            StepLog.from_json(data["log"]) if data["log"] else None,
            tuple(map(Unit.from_json, data["units"])),
        )

    def on_gpu(self, expandable: bool = False) -> Trace:
        """With the curve of what PyTorch's caching allocator must be given, where sizes are affine."""
        return replace(self, curve=ReservedCurve(self.curve, self.log, expandable)) if self.log is not None else self

    def profile(self, layout: Layout) -> ModelProfile:
        return ModelProfile(
            self.structure, self.num_params, self.state_bytes, {layout: self.curve}, {layout: self.work}
        )


class TraceFailed(Exception):
    """``infeasible`` when the workload refuses the parameters, else the workload itself is at fault."""

    def __init__(self, reason: str, *, infeasible: bool) -> None:
        super().__init__(reason)
        self.reason, self.infeasible = reason, infeasible


class _Lost(Exception):
    """The child has died or is silent."""


class TraceCache:
    """Answers by what determines them, in memory and as one small file each; a damaged file counts as absent."""

    def __init__(self, folder: Path, on_cuda: bool = False) -> None:
        self._folder, self._on_cuda = folder, on_cuda
        self._known: dict[str, Trace] = {}
        self._sources = _source_hash()

    def key(self, workload: str, code: str | None, params: Json, layout: Layout) -> str:
        numbers = {name: _sign(params[name]) for name in NUMBERS & params.keys()}
        asked = [self._sources, self._on_cuda, workload, code, {**params, **numbers}, str(layout)]
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()

    def file_of(self, what: str, workload: str, code: str | None, *asked: Any) -> Path:
        """Where to keep something else that is determined by this (see ``screener``)."""
        determining = [self._sources, self._on_cuda, what, workload, code, *asked]
        return self._file(hashlib.sha256(json.dumps(determining, sort_keys=True).encode()).hexdigest())

    def has_any(self) -> bool:
        return self._folder.is_dir()

    def get(self, key: str) -> Trace | None:
        if key not in self._known:
            try:
                self._known[key] = Trace.from_json(json.loads(self._file(key).read_bytes()))
            except (OSError, ValueError, KeyError, TypeError):
                return None
        return self._known[key]

    def put(self, key: str, answer: Json) -> Trace:
        self._known[key] = trace = Trace.from_json(answer)
        write_atomically(self._file(key), json.dumps(answer).encode())
        return trace

    def _file(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.json"


class Blobs(Protocol):
    """The part of the store that is needed here."""

    def blob(self, sha256: str) -> bytes: ...


class Tracer:
    """Traces on demand, by one of the processes that it is given, and only once each."""

    def __init__(self, store: Blobs, cache_dir: Path, seconds: int, *, on_cuda: bool = False) -> None:
        """``seconds`` of processor time for one trace; ``on_cuda``: of what is done there, not on a CPU."""
        self._store, self._cache_dir, self._seconds, self._on_cuda = store, cache_dir, seconds, on_cuda
        self.cache = TraceCache(cache_dir / "traces", on_cuda)

    def known(self, workload: str, code: str | None, params: Json, layout: Layout) -> Trace | None:
        return self.cache.get(self.cache.key(workload, code, params, layout))

    def trace(self, process: TraceProcess, workload: str, code: str | None, params: Json, layout: Layout) -> Trace:
        """Raises ``TraceFailed``. What the plain layout has found, if it was traced, makes others cheaper."""
        plain = self.known(workload, code, params, Layout())
        wish = {"params": dict(params), "layout": asdict(layout), "alike": plain.alike if plain else None}
        answer = self.ask(process, "trace", workload, code, wish)
        return self.cache.put(self.cache.key(workload, code, params, layout), answer)

    def ask(self, process: TraceProcess, what: str, workload: str, code: str | None, wish: Json) -> Json:
        """The answer of ``workloads.sandbox.server``, uncached. Raises ``TraceFailed``."""
        files: dict[str, str | None] = {"code_zip": None, "code_dir": None}
        if code is not None:
            files["code_zip"] = str(self._code_zip(code))
            files["code_dir"] = str((self._cache_dir / "code" / code).resolve())
        asked = {"ask": what, "workload": workload, "on_cuda": self._on_cuda, **files, **wish}
        return process.ask(asked, self._seconds)

    def _code_zip(self, sha256: str) -> Path:
        file = (self._cache_dir / "code" / f"{sha256}.zip").resolve()
        if not file.is_file():
            write_atomically(file, self._store.blob(sha256))
        return file


class TraceProcess:
    """One child and, once it is lost, the next. For one thread alone, the children of which die with it; only ``kill``
    may come from another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._killed = False
        self._num_asked = 0
        self._unread = b""

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        """Begin to warm up, where that has not happened yet; returns at once."""
        with self._lock:
            if self._killed or self._child is not None:
                return
            # In a session of its own: Ctrl-C in a terminal is for the service, which then ends its children.
            self._child = subprocess.Popen(
                [sys.executable, "-m", "workloads.sandbox.server"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
                start_new_session=True,
            )
            self._unread = b""

    def ask(self, request: Mapping[str, Any], seconds: int) -> Json:
        """The child's answer. A lost child is replaced, once; raises ``TraceFailed`` for an error and a second loss."""
        for last in (False, True):
            try:
                return self._ask(request, seconds)
            except _Lost as lost:
                self.end()
                if last or self._killed:
                    raise TraceFailed(f"the trace process was lost twice: {lost}", infeasible=False) from lost
                log.warning("the trace process was lost (%s): starting another", lost)
        raise AssertionError

    def kill(self) -> None:
        """End the child for good: whoever waits for it gets an error. ``end`` must follow."""
        with self._lock:
            self._killed = True
            if self._child is not None:
                self._child.kill()

    def end(self) -> None:
        """End the child, with what it has forked (which the kernel kills with it), and close its pipes."""
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.kill()
            with child:  # closes the pipes and waits
                pass

    def _ask(self, request: Mapping[str, Any], seconds: int) -> Json:
        self.start()
        child = self._child
        if child is None or child.stdin is None:
            raise _Lost("closed")
        self._num_asked += 1
        line = json.dumps({**request, "id": self._num_asked, "seconds": seconds}).encode() + b"\n"
        try:
            child.stdin.write(line)
            child.stdin.flush()
        except OSError as error:
            raise _Lost(f"it does not listen: {error}") from error
        return self._answer(child, time.monotonic() + START_SECONDS + WALL_FACTOR * seconds)

    def _answer(self, child: subprocess.Popen[bytes], deadline: float) -> Json:
        """To the last question, without its number."""
        while True:
            answer: dict[str, Any] = json.loads(self._line(child, deadline))
            if answer.pop("id", None) == self._num_asked:
                break
        if "error" in answer:
            reason = f"{answer['error']}\n{answer['traceback']}".strip()
            raise TraceFailed(reason, infeasible=answer["kind"] == "params")
        return answer

    def _line(self, child: subprocess.Popen[bytes], deadline: float) -> bytes:
        assert child.stdout is not None
        while b"\n" not in self._unread:
            ready, _, _ = select.select([child.stdout], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(child.stdout.fileno(), 65536) if ready else b""
            if not data:
                raise _Lost("it ended" if ready else "it is silent")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line


def write_atomically(file: Path, data: bytes) -> None:
    """Readers see the whole file or none, whatever happens meanwhile."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=file.parent, prefix=".", delete=False) as temporary:
        temporary.write(data)
    os.replace(temporary.name, file)


def _source_hash() -> str:
    """Of all that takes part in a trace but the user's files: the built-in workloads, the tracer, torch, Python."""
    digest = hashlib.sha256(f"{version('torch')} {sys.version}".encode())
    for package in ("estimators", "workloads"):
        for file in sorted((ROOT / package).rglob("*.py")):
            digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _sign(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return (value > 0) - (value < 0)
