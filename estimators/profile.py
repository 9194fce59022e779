"""The profile of a candidate: everything that fake traces say about it, for the planner to choose from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from estimators.model import INDIVISIBLE, Divisions, Layout, PeakCurve
from estimators.peaks.units import Unit
from estimators.traits import NO_TRAITS, Traits
from estimators.work import StepWork


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """The costs of one model structure. Each traced layout adds a peak curve and the work of a step.

    ``structure`` identifies the traced structure: two candidates that differ only in learning rate share it.
    ``state_bytes`` are the model states in the sense of ZeRO, held by one process when its optimizer begins:
    parameters, buffers, gradients and optimizer states. ``units``, ``divisions``, whether the blocks run ``in_order``,
    once each, whether samples differ in size (``is_uneven``), and the ``frozen_bytes`` of parameters that never train
    come from the plain layout. ``evaluations`` are
    the peak curves of evaluations, by their own micro-batch. ``refusals`` say why layouts cannot be traced, so that no
    plan may use them, and ``traits`` of the code rule out more of them. ``assumptions`` say in words what the traces
    take for granted.
    """

    structure: str
    num_params: int
    state_bytes: int
    curves: Mapping[Layout, PeakCurve]
    work: Mapping[Layout, StepWork] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()
    units: Sequence[Unit] = ()
    divisions: Divisions = INDIVISIBLE
    refusals: Mapping[Layout, str] = field(default_factory=dict)
    evaluations: Mapping[Layout, PeakCurve] = field(default_factory=dict)
    in_order: bool = True
    is_uneven: bool = False
    frozen_bytes: int = 0
    traits: Traits = NO_TRAITS

    def with_curve(
        self,
        layout: Layout,
        curve: PeakCurve,
        work: StepWork | None = None,
        assumptions: Sequence[str] = (),
        evaluation: PeakCurve | None = None,
    ) -> ModelProfile:
        """A copy that also knows the peak curve of ``layout`` with its assumptions and, if given, the work of its step
        and the peak curve of an evaluation."""
        works = {**self.work, layout: work} if work is not None else self.work
        assumed = tuple(sorted({*self.assumptions, *assumptions}))
        evaluations = {**self.evaluations, layout: evaluation} if evaluation is not None else self.evaluations
        curves = {**self.curves, layout: curve}
        return replace(self, curves=curves, work=works, assumptions=assumed, evaluations=evaluations)

    def without(self, refusals: Mapping[Layout, str]) -> ModelProfile:
        """A copy that also knows why these layouts cannot be traced."""
        return replace(self, refusals={**self.refusals, **refusals})

    def refusal(self, layout: Layout) -> str:
        """Why no plan may use ``layout``; empty if nothing is known against it."""
        return self.refusals.get(layout) or self.traits.refusal(layout)

    @property
    def flops_per_sample(self) -> float | None:
        """FLOPs of a training step for one sample, forward and backward; None where no plain layout was traced."""
        work = self.work.get(Layout())
        return work.per_sample.flops if work else None

    @property
    def assumed(self) -> str:
        """The assumptions, as the end of a reason: ``; assumed: …``, empty if there are none."""
        return f"; assumed: {', '.join(self.assumptions)}" if self.assumptions else ""
