"""An average of a model's weights over its steps, which evaluations use in their place (EMA, SWA).

Each rank averages what it holds: shards, its stage, or whole replicas. Buffers are not averaged. An average begins with
the weight before its first update, so a frozen parameter has none until it trains.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from workloads.parallel.forward_state.snapshot import has_fractions, local_part


@dataclass(slots=True, eq=False)
class Averages:
    """Averages of parameters, as tensors like them.

    With ``decay`` an average keeps this share of itself in each step. Without it, it is the mean of the weights after
    each step from ``start`` on, and before the weights themselves.
    """

    decay: float | None
    start: int = 0
    of: dict[Tensor, Tensor] = field(default_factory=dict)

    @torch.no_grad()
    def begin(self, parameters: Iterable[Tensor]) -> None:
        """Call it before an update: parameters that train and have no average yet get one, their present value."""
        for parameter in parameters:
            if parameter.requires_grad and has_fractions(parameter) and parameter not in self.of:
                self.of[parameter] = parameter.detach().clone()

    @torch.no_grad()
    def update(self, parameters: Iterable[Tensor], step: int, every: int = 1) -> None:
        """Call it after the update of ``step``, counted from 0; parameters are updated in ``every`` such step."""
        averaged = [parameter for parameter in parameters if parameter in self.of]
        if averaged:
            share = (
                1 - self.decay if self.decay is not None else 1 / max(1, step // every + 1 - -(-self.start // every))
            )
            averages = [local_part(self.of[parameter]) for parameter in averaged]
            torch._foreach_lerp_(averages, [local_part(parameter.detach()) for parameter in averaged], share)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Exchange the weights for their averages while the context lasts; it takes as much as the largest of them."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for parameter, average in self.of.items():
            weight, mean = local_part(parameter.detach()), local_part(average)
            own_weight = weight.clone()
            weight.copy_(mean)
            mean.copy_(own_weight)
