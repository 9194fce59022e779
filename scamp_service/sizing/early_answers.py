"""Answers that single traces of a candidate already give, for someone who waits for the estimate of all its plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from estimators.memory import Margin, predict, with_evaluation_batch
from estimators.model import MIB, Layout, Plan, Prediction
from estimators.profile import ModelProfile
from estimators.trace import Trace, profile_of
from scamp_service.model import Json


@dataclass(frozen=True, slots=True)
class EarlyAnswer:
    """One rank under ``plan``, which takes its share of the batch at once, whether it fits or not."""

    params: Json
    batch: int
    profile: ModelProfile
    plan: Plan
    prediction: Prediction

    @property
    def is_plain(self) -> bool:
        """Whether it is the first one: a single rank that computes everything as the model says."""
        return self.plan.layout == Layout()

    def __str__(self) -> str:
        """The plan with its peak and reservation, such as ``1 rank, micro-batch 32: peak 12.0 MiB, reserve 19 MiB``."""
        peak, reserve = self.prediction.peak_bytes / MIB, self.prediction.reserved_mib
        return f"{self.plan}: peak {peak:,.1f} MiB, reserve {reserve:,} MiB"


Hear = Callable[[EarlyAnswer], None]


def early_answer(
    params: Json, layout: Layout, trace: Trace, margin: Margin, *, on_gpu: bool, expandable: bool
) -> EarlyAnswer | None:
    """The answer of one trace; None for pipelines, and for layouts whose micro-batch only a comparison decides.

    On GPUs the plain layout's peak is what the allocator reserves; those of others are the peaks of tensors, because
    each replay of the allocator takes a while.
    """
    if layout.accumulate or layout.pp > 1 or layout.shares or trace.batch % layout.num_shares:
        return None
    profile = profile_of({layout: trace}, on_gpu=on_gpu and layout == Layout(), expandable=expandable)
    plan = with_evaluation_batch(profile, Plan(trace.batch // layout.num_shares, **layout.values))
    return EarlyAnswer(params, trace.batch, profile, plan, predict(profile, plan, 0, margin))
