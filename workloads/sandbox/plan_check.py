"""Finds plans under which a workload would train another curve than in one process, or measure other metrics."""

from __future__ import annotations

from estimators.model import Layout
from workloads.protocol import Workload
from workloads.refusals import WorkloadError
from workloads.sandbox.batch_check import expect_metrics_of_samples, why_whole
from workloads.sandbox.slab_check import expect_equal_slabs
from workloads.sandbox.split_check import expect_equal_parts


def expect_equal_divisions(workload: Workload, layout: Layout) -> None:
    """Raise ``WorkloadError`` if the parts of layers or samples that ranks have give something else than the whole."""
    if layout.spatial > 1:
        expect_equal_slabs(workload, layout.spatial)
    if (num_parts := layout.tp * layout.co_shard) > 1:
        expect_equal_parts(workload, num_parts)


def why_refused(workload: Workload, layout: Layout) -> str:
    """Why studies do not train the workload by this layout, as far as they run its code to find out; empty: they do."""
    try:
        expect_equal_divisions(workload, layout)
        expect_metrics_of_samples(workload)
    except WorkloadError as error:
        return str(error)
    return why_whole(workload) if layout.divides_batch else ""
