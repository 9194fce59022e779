"""Finds plans under which a workload would train another curve than in one process, or measure other metrics."""

from __future__ import annotations

from estimators.model import Layout
from workloads.protocol import Workload
from workloads.sandbox.slab_check import expect_equal_slabs
from workloads.sandbox.split_check import expect_equal_parts


def expect_equal_divisions(workload: Workload, layout: Layout) -> None:
    """Raise ``WorkloadError`` if the parts of layers or samples that ranks have give something else than the whole."""
    if layout.spatial > 1:
        expect_equal_slabs(workload, layout.spatial)
    if (num_parts := layout.tp * layout.co_shard) > 1:
        expect_equal_parts(workload, num_parts)
