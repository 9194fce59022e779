"""Differences that count as rounding where a training compares a pass or a step with another that should be equal."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from workloads.training.attempt.rank import TrainingRank
from workloads.training.updates.precision import options_of
from workloads.training.updates.update import updates_of

LEAST_LOSS = 1e-3
"""Loss for which the tolerance is meant: one that is smaller may be the difference of larger numbers."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Largest relative differences that count as rounding: of the loss, and of the gradient of one parameter.

    A parameter's gradient may also differ by ``share`` of that of the whole model.
    """

    loss: float
    gradient: float
    share: float

    def is_other_loss(self, before: float, after: float) -> bool:
        """Whether two losses differ by more than rounding; where one is not finite, nobody can tell."""
        return abs(after - before) > self.loss * max(abs(before), abs(after), LEAST_LOSS)


EXACT = Tolerance(loss=1e-4, gradient=2e-3, share=1e-4)
"""In fp32. Chosen, not measured: see docs/decisions/0021-checked-divisions.md."""
COARSE = Tolerance(loss=2e-2, gradient=1e-1, share=2e-2)
"""Where passes compute in bf16 or fp16. Chosen, not measured."""


def tolerance_of(rank: TrainingRank) -> Tolerance:
    """The tolerance for the precision in which the passes of a training compute."""
    low_types = (torch.bfloat16, torch.float16)
    is_low = options_of(rank.workload).precision != "fp32" or updates_of(rank.model).low_types
    return COARSE if is_low or any(each.dtype in low_types for each in rank.model.parameters()) else EXACT
