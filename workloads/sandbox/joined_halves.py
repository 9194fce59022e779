"""Runs halves of a batch as two ranks would whose experts tell each other what their tokens have chosen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from scamp.workload.experts import ONE_RANK, TokenRanks
from workloads.parallel.exchanging.experts import experts_of


class JoinedHalves:
    """The layers of experts of a model, which get the values of the other half from a pass of the whole batch."""

    def __init__(self, model: nn.Module) -> None:
        self._experts = experts_of(model)
        self._of_batch: list[Tensor] = []

    @contextmanager
    def batch(self) -> Iterator[None]:
        """A pass of the whole batch, which comes first."""
        self._of_batch.clear()
        with self._as(_Noting(self._of_batch)):
            yield

    @contextmanager
    def half(self, index: int) -> Iterator[None]:
        """A pass of the first or the second half."""
        with self._as(_Half(self._of_batch, index)):
            yield

    @contextmanager
    def _as(self, ranks: TokenRanks) -> Iterator[None]:
        for experts in self._experts:
            experts.token_ranks = ranks
        try:
            yield
        finally:
            for experts in self._experts:
                experts.token_ranks = ONE_RANK


class _Noting:
    index = 0

    def __init__(self, of_batch: list[Tensor]) -> None:
        self._of_batch = of_batch

    def gather(self, values: Tensor, fill: int) -> Tensor:
        self._of_batch.append(values.clone())
        return values[None]

    def total(self, counts: Tensor) -> Tensor:
        return self.gather(counts, 0)[0]

    def assumed(self, num: int) -> int:
        return num


class _Half:
    def __init__(self, of_batch: list[Tensor], index: int) -> None:
        self._left, self.index = iter(of_batch), index

    def gather(self, values: Tensor, fill: int) -> Tensor:
        """Values of both halves; those of the other one come from the batch."""
        of_batch = next(self._left)
        other = of_batch[len(of_batch) // 2 :] if self.index == 0 else of_batch[: len(of_batch) // 2]
        return torch.stack([values, other] if self.index == 0 else [other, values])

    def total(self, counts: Tensor) -> Tensor:
        return next(self._left)

    def assumed(self, num: int) -> int:
        return 2 * num
