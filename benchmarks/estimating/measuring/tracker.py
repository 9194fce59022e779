"""Peaks by torch's own ``MemTracker``, on the same steps with fake tensors, for comparison.

Single ranks only: for sharded models ``FSDPMemTracker`` counts tensors of the global shape that never exist.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils._pytree import tree_map_only

from benchmarks.estimating.case import Steps
from workloads.parallel.apply import apply_plan
from workloads.training.step import train_step

NUM_STEPS = 2  # the first creates the optimizer's states


def tracked_peak_bytes(case: Steps) -> int:
    """Peak bytes by ``MemTracker``. Raises any kind of error where the tracker fails."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        workload = case.workload()
        model = workload.build_model()
        apply_plan(model, workload.blocks(model), case.layout, None)
        optimizer = workload.optimizer(model)
        samples = tree_map_only(Tensor, torch.empty_like, workload.train_batch(torch.arange(case.batch)))
        tracker = MemTracker()
        tracker.track_external(model, optimizer, samples)
        with tracker:
            for _ in range(NUM_STEPS):
                tracker.reset_mod_stats()  # otherwise it refuses a module's second call; this keeps the peak
                train_step(workload, model, optimizer, [samples] * case.num_micro_batches, case.num_micro_batches)
    return int(tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"])
