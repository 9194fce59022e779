"""What one fake training step of a candidate under one layout says: the same value in the process that traces it, in
the cache and in the estimate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from estimators.model import Layout, ModelProfile, PeakCurve
from estimators.peaks.envelope import Envelope, PeakTable, curve_from_json
from estimators.peaks.reserved import ReservedCurve
from estimators.peaks.step_log import StepLog
from estimators.peaks.units import Unit
from estimators.work import StepWork


@dataclass(frozen=True, slots=True)
class Trace:
    """One rank of one layout.

    ``batch`` is the candidate's effective batch. ``structure`` identifies the sequence of operations and all sizes.
    ``state_bytes`` are alive when the optimizer begins. ``equal_blocks``: the model's blocks are equal, and a few of
    them were traced for all. ``log`` is there where the curve is an envelope, ``units`` in the plain layout.
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

    def gpu_curve(self, expandable: bool = False) -> PeakCurve:
        """What PyTorch's caching allocator must be given, where sizes are affine; else the peak of tensors."""
        return ReservedCurve(self.curve, self.log, expandable) if self.log is not None else self.curve

    def to_json(self) -> dict[str, Any]:
        return {
            "batch": self.batch,
            "structure": self.structure,
            "num_params": self.num_params,
            "state_bytes": self.state_bytes,
            "curve": self.curve.to_json(),
            "work": self.work.to_json(),
            "equal_blocks": self.equal_blocks,
            "log": self.log.to_json() if self.log else None,
            "units": [unit.to_json() for unit in self.units],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Trace:
        """Raises KeyError, TypeError or ValueError on anything but what ``to_json`` gives."""
        return cls(
            int(data["batch"]),
            str(data["structure"]),
            int(data["num_params"]),
            int(data["state_bytes"]),
            curve_from_json(data["curve"]),
            StepWork.from_json(data["work"]),
            bool(data["equal_blocks"]),
            StepLog.from_json(data["log"]) if data["log"] else None,
            tuple(map(Unit.from_json, data["units"])),
        )


def profile_of(
    traces: Mapping[Layout, Trace],
    known: ModelProfile | None = None,
    *,
    on_gpu: bool = False,
    expandable: bool = False,
) -> ModelProfile:
    """What traces of one candidate say, added to what is ``known`` of it; at least one is needed.

    ``on_gpu``: peaks are what PyTorch's allocator must be given, with ``expandable`` segments or without.
    """
    first = next(iter(traces.values()))
    profile = known or ModelProfile(first.structure, first.num_params, first.state_bytes, {})
    for layout, trace in traces.items():
        curve = trace.gpu_curve(expandable) if on_gpu else trace.curve
        profile = profile.with_curve(layout, curve, trace.work)
    return profile
