"""Values of zero-cost proxies of candidates, computed in a trace process and kept on disk."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from scamp_service.files import write_atomically
from scamp_service.sizing.tracing.trace_pool import TracePool
from scamp_service.sizing.tracing.trace_process import TraceFailed, TraceProcess
from scamp_service.sizing.tracing.traces import Blobs, Tracer
from scamp_service.study.values import Params

SECONDS = 15
"""Processor time for one candidate."""


class ProxyValues:
    """Computes proxies, one candidate after another. Any thread may ask; its process starts on first use."""

    def __init__(self, blobs: Blobs, cache_dir: Path) -> None:
        self._tracer = Tracer(blobs, cache_dir, SECONDS)
        self._pool = TracePool(1)

    def values(
        self, proxy: str, workload: str, code: str | None, candidates: Sequence[Params], seed: int = 0
    ) -> list[float | None]:
        """The proxy of each candidate. ``code`` is the SHA-256 of the user's files, None for a built-in workload.

        It is None where the workload refuses the parameters, fails, is too slow or too large for this host, or where
        the proxy is not a finite number. Raises ``TraceFailed`` for a failure of the host that may pass.
        """
        work = self._pool.submit(
            lambda process: [self._value(process, proxy, workload, code, params, seed) for params in candidates]
        )
        return work.result()

    def close(self) -> None:
        """End the process."""
        self._pool.__exit__(None, None, None)

    def _value(
        self, process: TraceProcess, proxy: str, workload: str, code: str | None, params: Params, seed: int
    ) -> float | None:
        file = self._tracer.cache.file_of("proxy", workload, code, proxy, dict(params), seed)
        try:
            cached: float | None = json.loads(file.read_text())
        except (OSError, ValueError):
            pass
        else:
            return cached
        request = {"params": dict(params), "proxy": proxy, "seed": seed}
        try:
            value: float | None = self._tracer.ask(process, "proxy", workload, code, request)["value"]
        except TraceFailed as failed:
            if failed.may_pass:
                raise
            value = None
        write_atomically(file, json.dumps(value).encode())
        return value
