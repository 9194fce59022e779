"""Finds plans under which a workload would train another curve than in one process, or measure other metrics."""

from __future__ import annotations

import logging

from estimators.model import Layout
from workloads.protocol import Workload
from workloads.refusals import WorkloadError
from workloads.sandbox.slab_check import difference_of_slabs
from workloads.sandbox.split_check import difference_of_parts

log = logging.getLogger("scamp.tracing")


def expect_equal_divisions(workload: Workload, layout: Layout) -> None:
    """Raise ``WorkloadError`` if the parts of layers or samples that ranks have give something else than the whole.

    Nothing is raised where this cannot be found out.
    """
    for check, count in ((difference_of_slabs, layout.spatial), (difference_of_parts, layout.tp * layout.co_shard)):
        try:
            difference = check(workload, count) if count > 1 else ""
        except Exception:  # parts of wrong shapes are found by the trace, which explains it
            log.debug("whether parts give what the whole does cannot be found out", exc_info=True)
            continue
        if difference:
            raise WorkloadError(difference)
