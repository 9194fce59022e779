"""How the traces of one workload are made: what estimates and screens take alike."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scamp_service.patience import TRACE_SECONDS
from scamp_service.sizing.tracing.trace_pool import TracePool
from scamp_service.sizing.tracing.traces import Tracer
from scamp_service.sizing.tracing.under_way import UnderWay


@dataclass(frozen=True, slots=True)
class OneBlob:
    """Store of a single zip, for a ``Tracer`` of one workload."""

    data: bytes

    def get(self, sha256: str) -> bytes:
        """The zip, whatever its hash."""
        return self.data


@dataclass(frozen=True, slots=True)
class Tracing:
    """Where traces are kept, how long each may take, and who makes them.

    A trace may take ``seconds`` of processor time; ``under_way`` is told what is traced. Traces are made in ``pool``,
    which is left running; None: in a pool that its user makes and ends.
    """

    cache_dir: Path
    seconds: int = TRACE_SECONDS
    under_way: UnderWay | None = None
    pool: TracePool | None = None

    def tracer(self, code: bytes | None, *, on_cuda: bool) -> Tracer:
        """A tracer of workloads in ``code``, the zip of the user's files."""
        return Tracer(
            OneBlob(code or b""),
            self.cache_dir,
            self.seconds,
            on_cuda=on_cuda,
            under_way=self.under_way,
            one_workload=self.pool is None,
        )


@dataclass(frozen=True, slots=True)
class TracedWorkload:
    """A workload, and what traces its candidates.

    ``code`` is the hash of the user's files, which ``tracer`` can fetch; None for a built-in workload.
    """

    name: str
    code: str | None
    tracer: Tracer
    pool: TracePool
