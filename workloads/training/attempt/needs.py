"""Finds steps that may need more memory than those measured, or less than was predicted.

A peak is predicted for the longest samples, and for all parameters that the optimizer has if ``on_step`` may unfreeze
some. So a peak is measured again where samples are longer than any before or more parameters train, and one of frozen
parameters says nothing.
"""

from __future__ import annotations

import math

from workloads.training.attempt.rank import TrainingRank
from workloads.training.data.order import lengths_of
from workloads.unfreezing import unfreezes


class Needs:
    """The longest sample of the measured steps of a rank, and the most parameters that trained in one."""

    def __init__(self, rank: TrainingRank) -> None:
        self._rank, self._unfreezes = rank, bool(unfreezes(rank.workload))
        self._lengths = lengths_of(rank.workload, "train")
        self._most_possible = -math.inf if self._lengths is None else float(self._lengths.max())
        self._longest, self._most_trained = -math.inf, 0

    @property
    def is_partial(self) -> bool:
        """Whether parameters are frozen that are predicted as if they trained."""
        groups = self._rank.optimizer.param_groups
        return self._unfreezes and not all(parameter.requires_grad for group in groups for parameter in group["params"])

    def more(self, step: int, is_measured: bool) -> bool:
        """Whether the step after ``step`` needs more memory than all that were measured, of which ``step`` may be."""
        if is_measured:
            self._longest, self._most_trained = max(self._longest, self._length(step)), self._num_trained
        is_longer = self._longest < self._most_possible and self._length(step + 1) > self._longest
        return is_longer or (self._unfreezes and self._num_trained > self._most_trained)

    @property
    def _num_trained(self) -> int:
        return sum(parameter.numel() for parameter in self._rank.model.parameters() if parameter.requires_grad)

    def _length(self, step: int) -> float:
        """The longest sample of the step, over all ranks; 0 where samples have no lengths."""
        return 0.0 if self._lengths is None else float(self._lengths[self._rank.feed.indices(step)].max())
