"""Counts what a few real steps of a workload allocate from the C library. Call it in a process that ``heap`` counts."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch

from benchmarks.estimating.measuring import heap
from estimators.model import Layout
from workloads.parallel.apply import apply_plan
from workloads.protocol import Workload
from workloads.training.step import train_step

NUM_STEPS = 2  # the first creates the optimizer's states


def peak_over_kept(warm: Callable[[], None], measured: Callable[[], None]) -> int:
    """Peak bytes of ``measured``, over the bytes that the process holds when it has returned.

    ``warm`` runs all operations once, so that the memory of a first use is not measured. Some bytes that are held
    afterwards were not held before: libraries keep memory permanently, such as buffers of MKL and oneDNN that grow with
    the largest product so far. It is not charged to the candidate: a rank's limit rises by it (docs/decisions/0009).
    """
    torch.set_num_threads(1)
    warm()
    gc.collect()
    measured()
    peak = heap.peak()
    gc.collect()
    return peak - heap.held()


def steps(workload: Workload, batch: int, layout: Layout | None = None) -> None:
    """Build the model and train a few steps of ``batch`` samples."""
    model = workload.build_model()
    apply_plan(model, workload.blocks(model), layout or Layout(), None)
    optimizer = workload.optimizer(model)
    heap.forget_peak()  # the weights exist; memory that their initialisation took does not count
    for step in range(NUM_STEPS):
        workload.on_step(step, NUM_STEPS, optimizer)
        indices = torch.arange(batch) % workload.num_train
        # Made on demand, as a rank does: the batch is gone before the update.
        train_step(workload, model, optimizer, (workload.train_batch(micro_batch) for micro_batch in (indices,)), 1)
