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


EXACT = Tolerance(loss=1e-4, gradient=3e-4, share=2e-5)
"""In fp32 on a CPU. What was measured is in docs/decisions/0021-checked-divisions.md."""
TF32 = Tolerance(loss=1e-4, gradient=2e-3, share=1e-4)
"""In fp32 on a GPU, where cuDNN may compute convolutions in TF32."""
HALF = Tolerance(loss=1e-3, gradient=2e-2, share=3e-3)
"""Where passes compute in fp16."""
COARSE = Tolerance(loss=2e-2, gradient=1e-1, share=2e-2)
"""Where passes compute in bf16, or on other devices."""


def tolerance_of(rank: TrainingRank) -> Tolerance:
    """The tolerance for the coarsest type in which the passes of a training compute."""
    precision = options_of(rank.workload).precision
    types = {parameter.dtype for parameter in rank.model.parameters()} | updates_of(rank.model).low_types
    if torch.bfloat16 in types or precision.startswith("bf16"):
        return COARSE
    if torch.float16 in types or precision == "fp16":
        return HALF
    return EXACT if rank.device.type == "cpu" else TF32
