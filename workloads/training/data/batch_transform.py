"""Changes whole micro-batches as the workload's ``batch_transform`` says, by one generator for all of a step.

A trace gets the largest batch: as ``largest_batch`` says, or else the largest of a few steps.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from scamp.workload.seeds import kept_generators, mixed
from workloads.protocol import Batch, Workload, defines

NUM_STEPS = 32
"""Steps of which the largest batch is taken, where the workload does not say which is."""


class Transform:
    """The changes of a training: the batch and the number of an optimizer step → the changed batch.

    A resumed run, and every rank and micro-batch of a step, get the same generator. Prints once if a batch is larger
    than those for which memory was predicted.
    """

    def __init__(self, workload: Workload, seed: int) -> None:
        self._workload, self._seed = workload, seed
        self._is_defined, self._is_checked = defines(workload, "batch_transform"), True
        self._most: dict[int, int] = {}  # values of the largest changed batch, by those of the batch

    def __call__(self, batch: Batch, step: int) -> Batch:
        if not self._is_defined:
            return batch
        changed = _changed(self._workload, batch, self._seed, step)
        if self._is_checked:
            self._check(batch, num_values(changed), step)
        return changed

    def _check(self, batch: Batch, num: int, step: int) -> None:
        if (before := num_values(batch)) not in self._most:
            self._most[before] = num_values(_largest(self._workload, batch))
        if num > (most := self._most[before]):
            print(
                f"batch_transform makes a batch of {num:,} numbers in step {step + 1}, but memory was predicted for "
                f"{most:,}: return the batch in its largest size from largest_batch",
                flush=True,
            )
            self._is_checked = False


def step_batch(workload: Workload, indices: Tensor) -> Batch:
    """A batch of training samples as the first step gets it."""
    batch = workload.train_batch(indices)
    return _changed(workload, batch, 0, 0) if defines(workload, "batch_transform") else batch


def traced_batch(workload: Workload, indices: Tensor) -> Batch:
    """A batch of training samples of the largest size that ``batch_transform`` makes."""
    return _largest(workload, workload.train_batch(indices))


def varies(workload: Workload) -> bool:
    """Whether ``batch_transform`` makes batches of several sizes."""
    if not defines(workload, "batch_transform"):
        return False
    batch = workload.train_batch(torch.arange(1))
    sizes = {num_values(_changed(workload, batch, 0, step)) for step in range(NUM_STEPS)}
    return len({*sizes, num_values(_largest(workload, batch))}) > 1


def num_values(batch: Batch) -> int:
    """The number of values in the tensors of a batch."""
    return sum(leaf.numel() for leaf in tree_leaves(batch) if isinstance(leaf, Tensor))


def _largest(workload: Workload, batch: Batch) -> Batch:
    with kept_generators(workload):
        if defines(workload, "largest_batch"):
            return workload.largest_batch(batch)
    if not defines(workload, "batch_transform"):
        return batch
    return max((_changed(workload, batch, 0, step) for step in range(NUM_STEPS)), key=num_values)


def _changed(workload: Workload, batch: Batch, seed: int, step: int) -> Batch:
    generator = torch.Generator().manual_seed(mixed(seed, step, -3))
    with kept_generators(workload):
        return workload.batch_transform(batch, generator, step)
