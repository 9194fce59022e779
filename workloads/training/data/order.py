"""The order of training samples, as a function of seed, epoch and step: it does not depend on the plan."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from scamp.workload.datasets import SetName, is_iterable, opened_dataset
from scamp.workload.seeds import kept_generators, mixed, seed_host
from workloads.protocol import Workload, defines
from workloads.refusals import WrongResult, kinds_of
from workloads.training.samples import batch_indices


def longest_first(workload: Workload, split: SetName) -> Tensor | None:
    """Indices of the samples that the order can give, the longest first: memory is predicted for the first of them.

    Padded or packed, no micro-batch of as many samples is larger. None: the samples have no lengths, or one and the
    same, so any will do.
    """
    lengths = lengths_of(workload, split)
    num = workload.num_train if split == "train" else workload.num_eval
    if lengths is None or bool((lengths == lengths[:1]).all()):
        return None
    is_ordered = split == "train" and defines(workload, "order")
    indices = SampleOrder(workload, 0).epoch(0) if is_ordered else torch.arange(num)
    indices = torch.tensor(sorted(set(indices.tolist())))
    return indices[lengths[indices].argsort(descending=True, stable=True)]


def lengths_of(workload: Workload, split: SetName) -> Tensor | None:
    """The lengths of all samples of a set, float64, shape [n]; None if they have none. Raises ``WrongResult``."""
    answer = workload.lengths(split)
    if answer is None:
        return None
    num = workload.num_train if split == "train" else workload.num_eval
    expectation = f'return one number for each of the {num} samples of "{split}", or None'
    try:
        lengths = torch.as_tensor(answer, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise WrongResult(workload.lengths, f"returns {kinds_of(answer)}", expectation) from None
    if lengths.shape != (num,):
        raise WrongResult(workload.lengths, f"returns {len(lengths.reshape(-1))} lengths", expectation)
    return lengths


class SampleOrder:
    """The samples of each optimizer step. Epochs follow each other without a gap."""

    def __init__(self, workload: Workload, seed: int, first: int = 0) -> None:
        """``first`` is the number of samples before step 0, if earlier steps had another batch."""
        self._workload, self._seed, self._first = workload, seed, first
        self._is_own = defines(workload, "order")
        self._in_order = defines(workload, "dataset") and is_iterable(opened_dataset(workload, "train"))
        self._epochs: dict[int, Tensor] = {}  # those of the workload's own order that the last step needed
        self._length = 0  # of each of them

    @property
    def epoch_length(self) -> int:
        """Number of samples of an epoch."""
        if not self._is_own:
            return self._workload.num_train
        return self._length or len(self.epoch(0))

    def places(self, step: int, batch: int) -> Tensor:
        """Epoch, position in the epoch, and index of each sample of a step, shape [batch, 3]."""
        length = self.epoch_length
        positions = torch.arange(step * batch, (step + 1) * batch) + self._first
        epochs, inside = positions // length, positions % length
        if self._in_order:
            indices = inside
        elif self._is_own:
            first, last = int(epochs[0]), int(epochs[-1])
            parts = [self.epoch(epoch)[inside[epochs == epoch]] for epoch in range(first, last + 1)]
            indices = torch.cat(parts)
            self._epochs = {last: self._epochs[last]}
        else:
            indices = batch_indices(length, batch, step, self._seed, self._first)
        return torch.stack([epochs, inside, indices], 1)

    def epoch(self, epoch: int) -> Tensor:
        """The workload's order of ``epoch``. Raises ``WrongResult`` unless it can be trained."""
        if epoch not in self._epochs:
            number = mixed(self._seed, epoch)
            with kept_generators(self._workload):
                seed_host(number, self._workload)
                indices = self._workload.order(epoch, torch.Generator().manual_seed(number))
            self._epochs[epoch] = self._checked(indices, epoch)
        return self._epochs[epoch]

    def _checked(self, result: Tensor | Sequence[int], epoch: int) -> Tensor:
        method, num = self._workload.order, self._workload.num_train
        expectation = f"return the indices of training samples, whole numbers from 0 to {num - 1}"
        try:
            indices = torch.as_tensor(result)
        except (TypeError, ValueError, RuntimeError):
            raise WrongResult(method, f"returns {kinds_of(result)}", expectation) from None
        if indices.ndim != 1 or indices.is_floating_point() or indices.is_complex() or indices.dtype == torch.bool:
            raise WrongResult(method, f"returns {kinds_of(result)} of {indices.dtype}", expectation)
        indices = indices.to(torch.int64)
        if len(indices) == 0 or int(indices.min()) < 0 or int(indices.max()) >= num:
            range_words = f"indices from {int(indices.min())} to {int(indices.max())}" if len(indices) else "no index"
            raise WrongResult(method, f"returns {range_words} for epoch {epoch}", expectation)
        length = self._length or (len(self.epoch(0)) if epoch else len(indices))
        if len(indices) != length:
            raise WrongResult(
                method,
                f"returns {length} indices for epoch 0, but {len(indices)} for epoch {epoch}",
                "return as many for every epoch, so that a step's samples can be found without all epochs before it",
            )
        self._length = length
        return indices
