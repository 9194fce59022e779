"""Screens the candidates of a space: chooses the plan of each, most of them without their own trace.

The choice is that of studies and of ``scamp estimate`` (``planner.PlanChoice``). It asks for the peaks of layouts, one
after another. Formulas fitted to a few traces give them for all candidates of a group at once; where no formula fits,
the candidate itself is traced under that layout. Some layouts are left out, because formulas for them would take longer
than they are worth: pipelines and ZeRO-1, which treat blocks unequally, and kinds that few candidates ask for. If
one of them might have been chosen, the candidate says so (``Screened.untried``).

Peaks count tensors, exactly. On a GPU the margin covers what the allocator needs beyond them; ``estimate`` replays the
allocator for one candidate.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from pydantic import TypeAdapter
from threadpoolctl import threadpool_limits

from estimators.devices.kind import DeviceKind
from placement.model import Cluster
from scamp_service.errors import InvalidInput
from scamp_service.files import write_atomically
from scamp_service.model import Json
from scamp_service.sizing.screen.blueprints import BlueprintFinder
from scamp_service.sizing.screen.joint_search import JointSearch
from scamp_service.sizing.screen.screened import Screened, Screening
from scamp_service.sizing.tracing.options import TracedWorkload, Tracing
from scamp_service.sizing.tracing.trace_pool import TracePool
from scamp_service.sizing.tracing.trace_process import TraceFailed
from scamp_service.sizing.tracing.traces import tracing_version
from scamp_service.study.user_code.checking import check_code

_SCREENING = TypeAdapter(Screening)


def screen(
    workload: str,
    code: bytes | None,
    candidates: Sequence[Json],
    cluster: Cluster,
    tracing: Tracing,
    kind: DeviceKind | None = None,
    say: Callable[[str], None] = lambda progress: None,
) -> Screening:
    """Screen candidates on ``cluster``, whose devices are of ``kind``. Raises ``InvalidInput``.

    ``code`` is the zip of the user's files. ``say`` gets messages on the progress.
    """
    check_code(workload, code, functions=True)
    tracer = tracing.tracer(code, on_cuda=cluster.has_gpus)
    sha256 = hashlib.sha256(code).hexdigest() if code else None
    sources = tracing_version("placement", "scamp_service/sizing")
    request = [[dict(params) for params in candidates], repr(cluster), repr(kind), sources]
    file = tracer.cache.file_of("screening", workload, sha256, *request)
    with contextlib.suppress(OSError, ValueError):
        return replace(_SCREENING.validate_json(file.read_bytes()), num_examples=0, num_checked=0)
    own_pool = TracePool() if tracing.pool is None else contextlib.nullcontext(tracing.pool)
    with own_pool as pool, threadpool_limits(1, "blas"):  # small products: threads would only wait for each other
        traced = TracedWorkload(workload, sha256, tracer, pool)
        finder = BlueprintFinder(traced)
        batches = _batches(finder, candidates)
        search = JointSearch(traced, finder, cluster, kind)
        sound = {place: batch for place, batch in enumerate(batches) if isinstance(batch, int)}
        say(f"looking for formulas for {len(sound)} candidates")
        search.begin({place: candidates[place] for place in sound}, sound)
        while search.advance():
            pass
    for why, num in Counter(candidate.why_alone for candidate in search.decided if candidate.why_alone).items():
        say(f"no formulas for {num} candidates, so they were traced one by one: {why}")
    refused = {place: batch for place, batch in enumerate(batches) if isinstance(batch, str)} | search.refused
    screened = {candidate.index: candidate.screened for candidate in search.decided}
    screened |= {place: Screened(candidates[place], 0, refused=why) for place, why in refused.items()}
    in_order = [screened[place] for place in range(len(candidates))]
    screening = Screening(in_order, finder.num_examples, finder.num_checked)
    if not search.has_failed:  # a trace that took too long may succeed another time
        write_atomically(file, _SCREENING.dump_json(screening))
    return screening


def _batches(finder: BlueprintFinder, candidates: Sequence[Json]) -> list[int | str]:
    try:
        return finder.batches(candidates)
    except TraceFailed as failed:
        raise InvalidInput(failed.reason) from None
