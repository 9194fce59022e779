"""Finds samples of different sizes in a workload that gives no ``lengths``, by reading a few samples one by one.

A batch of graphs or of padded texts is as large as its samples are. If these differ, memory is predicted for the
largest of those that were drawn. Only ``lengths`` says which are the largest of all.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from scamp.workload.datasets import SetName, is_iterable, opened_dataset
from scamp.workload.seeds import kept_generators
from workloads.protocol import Workload, defines
from workloads.training.data.batch_transform import num_values
from workloads.training.data.order import SampleOrder, lengths_of, longest_first

log = logging.getLogger("scamp.tracing")

NUM_DRAWN = 32
"""The first and the last sample, and random ones."""
NUM_LARGEST = NUM_DRAWN // 4
"""Drawn samples for which memory is predicted: a batch of all drawn ones would only be as large as a usual one."""


def largest_first(workload: Workload, split: SetName) -> Tensor | None:
    """Indices of the samples for which memory is predicted, the largest first; None if any will do."""
    longest = longest_first(workload, split)
    return longest if longest is not None else _largest_drawn(workload, split)


def has_unknown_sizes(workload: Workload, split: SetName) -> bool:
    """Whether samples of a set differ in size, and the workload gives no ``lengths``."""
    return lengths_of(workload, split) is None and _largest_drawn(workload, split) is not None


def _largest_drawn(workload: Workload, split: SetName) -> Tensor | None:
    """Indices of the largest of the drawn samples; None if all drawn ones have the same size, or cannot be read."""
    if defines(workload, "dataset") and is_iterable(opened_dataset(workload, split)):
        return None  # which can only be read one sample after another
    make = workload.train_batch if split == "train" else workload.eval_batch
    try:
        with kept_generators(workload):
            indices = _drawn(workload, split)
            sizes = torch.tensor([num_values(make(index[None])) for index in indices])
    except Exception:  # a trace explains it
        log.debug("samples cannot be read one by one", exc_info=True)
        return None
    if bool((sizes == sizes[0]).all()):
        return None
    return indices[sizes.argsort(descending=True, stable=True)[:NUM_LARGEST]]


def _drawn(workload: Workload, split: SetName) -> Tensor:
    """The first, the last and random ones of the indices that the order can give."""
    generator = torch.Generator().manual_seed(0)
    if split == "train" and defines(workload, "order"):
        indices = _distinct(SampleOrder(workload, 0).epoch(0))
        places = torch.randint(len(indices), (NUM_DRAWN - 2,), generator=generator)
        return indices[_distinct(torch.cat([torch.tensor([0, len(indices) - 1]), places]))]
    num = workload.num_train if split == "train" else workload.num_eval  # may be billions: nothing of this size is made
    return _distinct(torch.cat([torch.tensor([0, num - 1]), torch.randint(num, (NUM_DRAWN - 2,), generator=generator)]))


def _distinct(numbers: Tensor) -> Tensor:
    return torch.tensor(sorted(set(numbers.tolist())))
