"""The estimate of one candidate: its plans on given devices, the one that a study would choose, and their JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from estimators.devices.kind import DeviceKind
from estimators.memory import Margin, largest_micro_batch
from estimators.model import MIB, Layout, PeakCurve, Plan
from estimators.peaks.envelope import PeakTable
from estimators.peaks.reserved import ReservedCurve
from estimators.peaks.units import Unit
from estimators.profile import ModelProfile
from placement.option import Evidence, NoPlan, Option
from placement.planning.answers import ChosenPlan
from placement.planning.step_seconds import PredictedStep, predicted_step
from scamp.shown import shown_value
from scamp_service.model import Json
from scamp_service.study.spec import MOST_PACKED

ANY_MIB = 2**40
"""MiB of devices that hold any plan: for questions about how large devices must be."""

UNVERIFIED = ("outside_bytes", "smallest_capacity_bytes", "step_seconds", "compute_seconds", "communication_share")
"""Fields that on GPUs rest on published figures, on assumptions, or on a replay that was not compared with a GPU."""
MEASURED_ALONE = ("outside_bytes", "step_seconds", "compute_seconds", "communication_share")
"""Fields among them that ``scamp calibrate`` measures for single-rank plans."""


@dataclass(frozen=True, slots=True)
class PackEstimate:
    """So many trials may share a process on a device, with ``shared_mib`` of frozen weights once and ``own_mib`` each.

    ``step_ratio``: the seconds of a step of all, divided by those of a step of one; None if they are not predicted.
    """

    members: int
    shared_mib: int
    own_mib: int
    step_ratio: float | None

    def __str__(self) -> str:
        words = (
            f"pack: {self.members} trials in a process need {self.shared_mib + self.members * self.own_mib:,} MiB, "
            f"{self.shared_mib:,} of frozen weights once and {self.own_mib:,} for each"
        )
        return words + (f"; a step of all takes {self.step_ratio:.3g} × one" if self.step_ratio else "")


@dataclass(frozen=True, slots=True)
class Estimate:
    """The plans of one rank and of FSDP, and the plan that a study would choose, which may be another one.

    Plans that the model's hints exclude are not among the ``options``, so there may be none. ``refused`` says why plans
    are missing, if some cannot be traced, and ``batch_reason`` why the batch is this one, if it was chosen.
    """

    params: Json
    batch: int
    profile: ModelProfile
    options: Sequence[Option]
    choice: ChosenPlan | NoPlan
    margin: Margin
    kind: DeviceKind | None = None
    refused: str = ""
    batch_reason: str = ""

    @property
    def units(self) -> Sequence[Unit]:
        """The costs of the model's units."""
        return self.profile.units

    @property
    def of_any_size(self) -> bool:
        """Whether no size of the devices is given, so that every plan fits."""
        return bool(self.options) and self.options[0].offered_mib == ANY_MIB

    @property
    def reason(self) -> str:
        """Why a study would choose this plan, and what is assumed; without a size of the devices, how large they must
        be."""
        if not self.of_any_size:
            return "; ".join(filter(None, (self.choice.reason + self.profile.assumed, self.batch_reason)))
        first, least = self.options[0], min(self.options, key=lambda option: option.prediction.reserved_mib)
        words = f"{first.plan}: needs a device of {first.prediction.reserved_mib} MiB"
        if least is not first:
            words += f"; least: {least.prediction.reserved_mib} MiB per device on {least.plan}"
        if hints := self.profile.divisions.constraints.words:
            words += f"; {hints}"
        return f"{words}{self.profile.assumed}. To fit a device, name it with --mib or --device"

    @property
    def on_gpu(self) -> bool:
        """Whether the devices are GPUs rather than virtual devices."""
        return self.kind is not None and self.kind.memory is not None

    def step_time(self, option: Option) -> PredictedStep | None:
        """Time of one optimizer step, as a study predicts it.

        None when nothing was calibrated or traced, when the plan does not fit, and for several devices whose links are
        unknown.
        """
        return predicted_step(self.profile, option.plan, self.kind) if option.fits else None

    def outside_bytes(self, option: Option) -> int:
        """Bytes of one rank outside of the allocator: CUDA context, workspaces, NCCL. 0 on virtual devices."""
        memory = self.kind.memory if self.kind else None
        return memory.outside_bytes(option.plan.world_size) if memory else 0

    def smallest_capacity_bytes(self, option: Option) -> int | None:
        """Bytes of the smallest device that a rank of this plan runs on, without a margin; None without a replay."""
        if option.evidence is Evidence.STATES or not isinstance(self.profile.curves[option.plan.layout], ReservedCurve):
            return None
        return option.prediction.needed_bytes + self.outside_bytes(option)

    def largest_micro_batch(self, option: Option) -> int | None:
        """Largest micro-batch with which a rank of this plan fits, whatever the batch.

        None without a trace, in a pipeline, and without a size of the devices.
        """
        layout = replace(option.plan.layout, accumulate=False)
        if self.of_any_size or layout not in self.profile.curves or layout.pp > 1:
            return None
        return largest_micro_batch(self.profile, layout, option.offered_mib, margin=self.margin)

    def may_be_larger(self, option: Option) -> bool:
        """Whether a larger micro-batch than ``largest_micro_batch`` may fit: where peaks follow no formula, only those
        of a few micro-batches are known."""
        largest, curve = self.largest_micro_batch(option), self._curve(option)
        return bool(largest) and isinstance(curve, PeakTable) and not curve.is_followed(largest or 0)

    @property
    def largest_batch(self) -> tuple[Plan, Option] | None:
        """The plan with the largest batch that ranks compute at once, without micro-batches, and the option that it
        comes from; None if no size of the devices is given, or if nothing fits."""
        plans = [
            (replace(option.plan, micro_batch=largest, num_micro_batches=1, shares=(), evaluation_batch=0), option)
            for option in self.options
            if (largest := self.largest_micro_batch(option))
        ]
        return max(plans, key=lambda pair: pair[0].batch, default=None)

    @property
    def pack(self) -> PackEstimate | None:
        """How many trials like this one may share a process on a device; None if only one may, or nothing is frozen.

        A step of all is assumed to take as long as one with the samples of all.
        """
        plain = (option for option in self.options if option.plan.world_size == 1 and not option.plan.layout.recompute)
        alone = next(plain, None)
        shared_mib = self.profile.frozen_bytes // MIB
        if alone is None or not shared_mib:
            return None
        own_mib = max(1, alone.prediction.reserved_mib - shared_mib)
        members = min(MOST_PACKED, (alone.offered_mib - shared_mib) // own_mib)
        if members < 2:
            return None
        joint = replace(alone.plan, micro_batch=members * alone.plan.micro_batch)
        steps = [predicted_step(self.profile, plan, self.kind) for plan in (joint, alone.plan)]
        ratio = steps[0].seconds / steps[1].seconds if steps[0] and steps[1] else None
        return PackEstimate(members, shared_mib, own_mib, ratio)

    def _curve(self, option: Option) -> PeakCurve | None:
        return self.profile.curves.get(replace(option.plan.layout, accumulate=False))

    def unverified(self, option: Option) -> list[str]:
        """Names of the values in ``to_json`` that were never compared with measurements on such a device."""
        if self.kind is None or not self.on_gpu:
            return []
        measured = MEASURED_ALONE if self.kind.verified and option.plan.world_size == 1 else ()
        return [name for name in UNVERIFIED if name not in measured]

    def to_json(self) -> dict[str, Any]:
        """One candidate of ``scamp estimate --json``.

        ``parts`` are the bytes of the peak by category; ``largest_micro_batch`` is null without a trace, and
        ``offered_mib`` too without a size of the devices; ``larger_untraced``: larger ones may fit but were not
        traced.
        """
        chosen = self.choice.plan if isinstance(self.choice, ChosenPlan) else None
        return {
            "params": dict(self.params),
            "batch": self.batch,
            "num_params": self.profile.num_params,
            "state_bytes": self.profile.state_bytes,
            "flops_per_sample": self.profile.work[Layout()].per_sample.flops,
            "units": [_unit_json(unit) for unit in self.units],
            "plan": chosen.to_json() if chosen else None,
            "reason": self.reason,
            "assumptions": list(self.profile.assumptions),
            "refused": self.refused,
            "traits": self.profile.traits.words,
            "largest_batch": largest[0].batch if (largest := self.largest_batch) else None,
            "pack": asdict(self.pack) if self.pack else None,
            "device": self._device_json(),
            "options": [self._option_json(option) for option in self.options],
        }

    def _option_json(self, option: Option) -> dict[str, Any]:
        time = self.step_time(option)
        return {
            "plan": option.plan.to_json(),
            "text": option.words,
            "fits": option.fits,
            "peak_bytes": option.prediction.peak_bytes,
            "evaluation_bytes": option.prediction.evaluation_bytes,
            "parts": dict(option.prediction.parts),
            "outside_bytes": self.outside_bytes(option),
            "smallest_capacity_bytes": self.smallest_capacity_bytes(option),
            "reserved_mib": option.prediction.reserved_mib,
            "offered_mib": None if self.of_any_size else option.offered_mib,
            "lower_bound": option.is_bound,
            "largest_micro_batch": self.largest_micro_batch(option),
            "larger_untraced": self.may_be_larger(option),
            "step_seconds": time.seconds if time else None,
            "compute_seconds": time.compute_seconds if time else None,
            "communication_share": time.communication_share if time else None,
            "unverified": self.unverified(option),
        }

    def _device_json(self) -> dict[str, Any] | None:
        if self.kind is None:
            return None
        return {
            "name": self.kind.name,
            "rates": self.kind.provenance,
            "figures": {name: asdict(figure) for name, figure in self.kind.figures()},
        }


def _unit_json(unit: Unit) -> dict[str, Any]:
    """JSON of one of ``count`` equal units; bytes and FLOPs are those of one sample."""
    return {
        "name": unit.name,
        "count": unit.count,
        "num_params": unit.num_params,
        "flops": unit.per_sample.flops,
        "bytes_read_and_written": unit.per_sample.num_bytes,
        "activation_bytes": unit.activations.bytes_per_sample,
        "output_bytes": unit.output.bytes_per_sample,
        "most_parts": unit.most_parts,
    }


def params_in_words(params: Mapping[str, Any]) -> str:
    """Parameters in one line."""
    return " ".join(f"{name}={shown_value(value)}" for name, value in params.items()) or "its defaults"
