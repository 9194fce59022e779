"""The result of tracing one fake training step of a candidate under one layout.

The process that traces, the cache and the estimate all use this one type. It holds plain values only: the child process
writes ``dataclasses.asdict`` of it as JSON, and ``scamp_service.sizing`` validates that with pydantic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from estimators.model import INDIVISIBLE, Divisions, Layout, PeakCurve
from estimators.peaks.envelope import Envelope, PeakTable
from estimators.peaks.reserved import ReservedCurve
from estimators.peaks.step_log import StepLog
from estimators.peaks.units import Unit
from estimators.profile import ModelProfile
from estimators.traits import NO_TRAITS, Traits
from estimators.work import StepWork


@dataclass(frozen=True, slots=True)
class Trace:
    """The trace of one rank under one layout.

    ``batch`` is the candidate's effective batch. ``structure`` identifies the sequence of operations and all sizes.
    ``state_bytes`` are alive when the optimizer begins. ``equal_blocks`` is True if the model's blocks are equal and
    only a few of them were traced. ``log`` is None unless the curve is an envelope. ``units`` and ``divisions`` are
    those of the plain layout; other layouts have none. ``assumptions`` say in words what the trace takes for granted.
    ``evaluation`` is the peak of an evaluation over its own micro-batch, None if nothing was evaluated; ``curve``
    contains what evaluations keep. ``curve`` has the peaks of tensors; ``object_bytes`` is host memory of autograd's
    objects beyond them, and ``unknown_percent`` what kernels may need beyond it
    (see ``estimators.tracing.device``): both are 0 on a GPU. ``in_order`` says of the plain layout whether
    the blocks run once each, one after another, and ``traits`` which of its code rule out plans. ``is_uneven`` says of
    the plain layout whether samples differ in size: the trace is one of the largest. ``frozen_bytes`` are those of
    parameters that never train, here and on all ranks.
    """

    batch: int
    structure: str
    num_params: int
    state_bytes: int
    curve: Envelope | PeakTable
    work: StepWork
    equal_blocks: bool
    log: StepLog | None = None
    units: tuple[Unit, ...] = ()
    divisions: Divisions = INDIVISIBLE
    assumptions: tuple[str, ...] = ()
    evaluation: Envelope | PeakTable | None = None
    in_order: bool = True
    object_bytes: int = 0
    unknown_percent: int = 0
    traits: Traits = NO_TRAITS
    is_uneven: bool = False
    frozen_bytes: int = 0

    @property
    def host_curve(self) -> PeakCurve:
        """Peak bytes on a device whose memory is that of the host: tensors, the objects of autograd, and (``slack``)
        what kernels may need beyond them."""
        return self._with_unknown(self.curve).plus("objects", self.object_bytes)

    @property
    def evaluation_curve(self) -> PeakCurve | None:
        """Peak bytes of an evaluation, and what kernels may need beyond them; None if nothing was evaluated."""
        return self._with_unknown(self.evaluation) if self.evaluation is not None else None

    def _with_unknown(self, curve: Envelope | PeakTable) -> Envelope | PeakTable:
        return curve.plus_share("slack", self.unknown_percent)

    def gpu_curve(self, expandable: bool = False) -> PeakCurve:
        """Peak bytes that PyTorch's caching allocator needs if sizes are affine (there is a ``log``); else the peak of
        tensors."""
        return ReservedCurve(self.curve, self.log, expandable) if self.log is not None else self.curve


def profile_of(
    traces: Mapping[Layout, Trace],
    earlier: ModelProfile | None = None,
    *,
    on_gpu: bool = False,
    expandable: bool = False,
) -> ModelProfile:
    """The profile of one candidate from traces, added to its ``earlier`` profile; without one, there must be a trace.

    With ``on_gpu`` the peaks are the bytes that PyTorch's caching allocator needs, with ``expandable`` segments or
    classic ones.
    """
    profile = earlier
    if profile is None:
        first = next(iter(traces.values()))
        profile = ModelProfile(first.structure, first.num_params, first.state_bytes, {})
    for layout, trace in traces.items():
        if layout == Layout():
            profile = replace(
                profile,
                units=trace.units,
                divisions=trace.divisions,
                in_order=trace.in_order,
                is_uneven=trace.is_uneven,
                frozen_bytes=trace.frozen_bytes,
                traits=trace.traits,
            )
        curve = trace.gpu_curve(expandable) if on_gpu else trace.host_curve
        profile = profile.with_curve(layout, curve, trace.work, trace.assumptions, trace.evaluation_curve)
    return profile
