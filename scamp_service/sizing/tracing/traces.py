"""Makes traces of candidates in a child process (``workloads.sandbox.server``), and caches them.

The controller itself never imports torch or a user's code. Nothing is decided here: the planner says which layouts to
trace.
"""

from __future__ import annotations

import hashlib
import json
import logging
import lzma
import math
import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from pydantic import TypeAdapter

from estimators.model import Candidate, Layout
from estimators.trace import Trace
from scamp_service.files import code_zip, write_atomically
from scamp_service.model import Json
from scamp_service.settings import ROOT
from scamp_service.sizing.tracing.trace_process import TraceFailed, TraceProcess
from scamp_service.sizing.tracing.under_way import UnderWay

log = logging.getLogger("scamp.tracing")

_TRACE = TypeAdapter(Trace)

# Parameters that the protocol defines as plain numbers of the optimizer: only their sign can change what is allocated.
NUMBERS = frozenset({"lr", "weight_decay"})


MOST_IN_MEMORY = 512
"""Traces that are kept in memory, those used last. A trace of a demo model takes about 0.13 MiB."""
RENEWAL_SECONDS = 3600.0
"""How often the file of a trace in use is renewed."""


class TraceCache:
    """Traces by everything that determines them, in memory and in one small file each; a damaged file is ignored.

    Memory holds the ``MOST_IN_MEMORY`` that were used last. A file that is in use is renewed, because
    SCAMP_KEEP_TRACES_DAYS counts from the last use.
    """

    def __init__(self, folder: Path, on_cuda: bool = False, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._on_cuda, self._clock = folder, on_cuda, clock
        self._known: OrderedDict[str, tuple[Trace, float]] = OrderedDict()  # with the time of the file's renewal
        self._lock = threading.Lock()
        self._sources = tracing_version("estimators", "scamp/workload", "workloads")

    def key(self, candidate: Candidate, layout: Layout) -> str:
        """Hash of everything that determines the trace of a candidate under a layout."""
        params = dict(candidate.params)
        params |= {name: _sign(params[name]) for name in NUMBERS & params.keys()}
        parts = [self._sources, self._on_cuda, candidate.workload, candidate.code, params, str(layout)]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def file_of(self, file_kind: str, workload: str, code: str | None, *parts: Any) -> Path:
        """File for another result that these arguments determine, such as a blueprint (see ``blueprints``)."""
        determining = [self._sources, self._on_cuda, file_kind, workload, code, *parts]
        return self._file(hashlib.sha256(json.dumps(determining, sort_keys=True).encode()).hexdigest())

    def has_any(self) -> bool:
        """Whether anything was cached before."""
        return self._folder.is_dir()

    def get(self, key: str) -> Trace | None:
        """The cached trace, or None."""
        with self._lock:
            trace, renewed = self._known.get(key, (None, -math.inf))
        try:
            file = self._file(key, "xz")
            if trace is None:
                trace = _TRACE.validate_json(lzma.decompress(file.read_bytes()))
            if (now := self._clock()) - renewed >= RENEWAL_SECONDS:
                renewed = now
                os.utime(file)
        except (OSError, lzma.LZMAError, ValueError):
            if trace is None:
                return None
        self._keep(key, trace, renewed)
        return trace

    def put(self, key: str, answer: Json) -> Trace:
        """Cache the JSON of a trace, in memory only if the disk refuses the file; returns the trace."""
        trace = _TRACE.validate_python(answer)
        self._keep(key, trace, self._clock())
        try:
            # Events of a step log shrink to about a sixth. A higher preset saves little and takes three times as long.
            write_atomically(self._file(key, "xz"), lzma.compress(_TRACE.dump_json(trace), preset=1))
        except OSError as error:
            log.warning("a trace is not kept on disk, and will be made again after a restart: %s", error)
        return trace

    def _keep(self, key: str, trace: Trace, renewed: float) -> None:
        with self._lock:
            self._known[key] = trace, renewed
            self._known.move_to_end(key)
            while len(self._known) > MOST_IN_MEMORY:
                self._known.popitem(last=False)

    def _file(self, key: str, suffix: str = "json") -> Path:
        return self._folder / key[:2] / f"{key}.{suffix}"


class Blobs(Protocol):
    """The part of the store that a tracer needs: see ``store.parts.blobs``."""

    def get(self, sha256: str) -> bytes:
        """Zip of a user's files, by its SHA-256."""
        ...


class Tracer:
    """Traces on demand in a process that the caller gives, each trace only once."""

    def __init__(
        self,
        blobs: Blobs,
        cache_dir: Path,
        seconds: int,
        *,
        on_cuda: bool = False,
        under_way: UnderWay | None = None,
        one_workload: bool = False,
    ) -> None:
        """``seconds`` is the processor time for one trace; ``on_cuda`` traces the operations of a GPU, not of a CPU.

        ``under_way`` is told what is traced. With ``one_workload`` the processes are given no other user's code, so
        they keep the libraries that it imports.
        """
        self._blobs, self._cache_dir, self._seconds, self._on_cuda = blobs, cache_dir, seconds, on_cuda
        self._under_way, self._one_workload = under_way or UnderWay(), one_workload
        self.cache = TraceCache(cache_dir / "traces", on_cuda)

    def cached(self, candidate: Candidate, layout: Layout) -> Trace | None:
        """The trace if it is cached, or None."""
        return self.cache.get(self.cache.key(candidate, layout))

    def trace(self, process: TraceProcess, candidate: Candidate, layout: Layout, seconds: int | None = None) -> Trace:
        """Make the trace within ``seconds`` (None: those of the tracer) and cache it. Raises ``TraceFailed``.

        Once the plain layout is traced, traces of other layouts are cheaper.
        """
        plain = self.cached(candidate, Layout())
        if plain and (why := plain.traits.refusal(layout)):
            raise TraceFailed(why, infeasible=False)
        equal_blocks = plain.equal_blocks if plain else None
        request = {"params": dict(candidate.params), "layout": asdict(layout), "equal_blocks": equal_blocks}
        answer = self.ask(process, "trace", candidate.workload, candidate.code, request, seconds)
        return self.cache.put(self.cache.key(candidate, layout), answer)

    def ask(
        self,
        process: TraceProcess,
        request_kind: str,
        workload: str,
        code: str | None,
        request: Json,
        seconds: int | None = None,
    ) -> Json:
        """Answer of ``workloads.sandbox.server`` to a request, which is not cached. Raises ``TraceFailed``.

        Each of its ``points``, if it has any, has the time of a trace.
        """
        files: dict[str, str | None] = {"code_zip": None, "code_dir": None}
        if code is not None:
            folder = (self._cache_dir / "code").resolve()
            files["code_zip"] = str(process.persist(lambda: code_zip(folder, code, lambda: self._blobs.get(code))))
            files["code_dir"] = str(folder / code)
        message = {
            "ask": request_kind,
            "workload": workload,
            "on_cuda": self._on_cuda,
            "keeps_imports": self._one_workload,
            **files,
            **request,
        }
        points: Sequence[Json] = request.get("points", [request])
        layout = Layout.from_json(points[0]["layout"]) if "layout" in points[0] else None
        with self._under_way.doing(request_kind if layout is None else ", ".join([layout.ways, *layout.inside])):
            return process.ask(message, len(points) * (seconds or self._seconds))


def tracing_version(*packages: str) -> str:
    """Hash of torch, Python and the sources of these packages: for traces, whatever they depend on except the user's
    files."""
    digest = hashlib.sha256(f"{version('torch')} {sys.version}".encode())
    for package in packages:
        for file in sorted((ROOT / package).rglob("*.py")):
            digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _sign(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return (value > 0) - (value < 0)
