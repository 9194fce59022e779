"""Plans of a study whose ranks take unlike shares of the batch, on devices of unlike speed or memory.

They are offered in two cases only: where no plan with equal shares fits, and where a plan needs more devices than there
are of any one speed, so that its ranks would wait for the slowest. Elsewhere they shorten no study, because trials that
keep to devices of one kind use all of them (docs/plan-search.md). The shares follow the speed of the devices, as far as
memory allows; both are known from traces. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from estimators.axes import Spread
from estimators.devices.kind import FLOP_COUNTER, DeviceKind
from estimators.memory import largest_micro_batch
from estimators.model import Layout, Plan
from placement.exact.shares import Member, Shares, best_shares
from placement.model import Device
from placement.option import NoPlan, Option
from placement.planning.answers import Answer, ChosenPlan, Untraced
from placement.planning.question import Question, degrees, divisors
from placement.planning.step_seconds import comparable_step
from placement.planning.traced_options import TracedOptions, layouts_of

_LEAST_SECONDS = 1e-15  # of a sample: a model without any work still takes turns


def with_shares(question: Question, answer: Answer) -> Answer:
    """The answer to ``question``, or a plan of unlike shares instead, or the layout that must be traced first."""
    if isinstance(answer, Untraced) or question.plan is not None or not _are_unlike(question, question.cluster.devices):
        return answer
    search = _Search(question, TracedOptions(question))
    return search.fitting(answer) if isinstance(answer, NoPlan) else search.balanced(answer)


def _devices(question: Question) -> Sequence[Device]:
    """The devices, those with most memory first; of equally large ones, the fastest."""
    return sorted(
        question.cluster.devices, key=lambda device: (-device.capacity_mib, _seconds_of_flop(question, device))
    )


def _kind(question: Question, device: Device) -> DeviceKind:
    return question.kinds.get(device.kind) or question.kind or FLOP_COUNTER


def _seconds_of_flop(question: Question, device: Device) -> float:
    return _kind(question, device).rates["matmul"].per_flop


def _may_have_shares(plan: Plan) -> bool:
    """Whether each rank has a share of the batch of its own, which may be unlike those of others."""
    return plan.num_shares == plan.world_size and not plan.adasum and plan.co_shard == 1


def _are_unlike(question: Question, devices: Sequence[Device]) -> bool:
    """Whether these devices differ in memory or speed."""
    first = devices[0]
    return any(
        device.capacity_mib != first.capacity_mib
        or (device.kind != first.kind and _seconds_of_flop(question, device) != _seconds_of_flop(question, first))
        for device in devices
    )


@dataclass(frozen=True, slots=True)
class _Search:
    question: Question
    traced: TracedOptions

    def fitting(self, refused: NoPlan) -> Answer:
        """A plan on the fewest devices with which unlike shares fit; the refusal if there is none."""
        for way, devices in self._ways():
            if (result := self._best(way, devices)) is None:
                continue
            if isinstance(result, Untraced):
                return result
            option, why = result
            reason = f"{option}; ranks take unlike shares of the batch: {why}. With equal shares: {refused.reason}"
            return ChosenPlan(option.plan, option.prediction, reason, (option,))
        return refused

    def balanced(self, chosen: ChosenPlan) -> Answer:
        """The chosen plan with shares by speed, if it needs devices of several speeds."""
        plan, way = chosen.plan, Spread(**chosen.plan.values)
        speeds = Counter(_seconds_of_flop(self.question, device) for device in self.question.cluster.devices)
        if plan.world_size <= max(speeds.values()) or not _may_have_shares(plan):
            return chosen
        fastest = sorted(self.question.cluster.devices, key=lambda device: _seconds_of_flop(self.question, device))
        result = self._best(way, fastest[: plan.world_size])
        if result is None or isinstance(result, Untraced):
            return result or chosen
        option, why = result
        if not option.plan.shares:
            return chosen
        reason = f"{option}; ranks take unlike shares of the batch: {why}. With equal shares: {chosen.reason}"
        return ChosenPlan(option.plan, option.prediction, reason, (*chosen.options, option))

    def _ways(self) -> Iterator[tuple[Spread, Sequence[Device]]]:
        """Yield FSDP without and with recompute over the largest devices, for each number that includes unlike ones."""
        devices = _devices(self.question)
        numbers = dict.fromkeys([*(degree for degree, _ in degrees(self.question.cluster)), len(devices)])
        for num in numbers:
            if num > 1 and _are_unlike(self.question, devices[:num]):
                for recompute in (False, True):
                    yield Spread(dp_shard=num, recompute=recompute), devices[:num]

    def _best(self, way: Spread, devices: Sequence[Device]) -> tuple[Option, str] | Untraced | None:
        """The option of this way with the fewest micro-batches that fits these devices, and why it has its shares."""
        if not self.question.constraints.allow(way) or self.traced.states_alone(way, devices[-1].capacity_mib):
            return None
        capacities = sorted((device.capacity_mib for device in devices), reverse=True)
        for samples in divisors(self.question.batch):
            num = self.question.batch // samples
            layout = layouts_of(way)[num > 1]
            if samples < way.world_size or self.question.profile.refusal(layout):
                return None
            if layout not in self.question.profile.curves:
                return Untraced(layout)
            shares = best_shares([self._member(layout, device, samples) for device in devices], samples)
            if isinstance(shares, Shares):
                largest_first = tuple(sorted(shares.samples, reverse=True))
                plan = Plan(largest_first[0], num, shares=largest_first, **way.values)
                if any(map(self.question.profile.refusal, plan.traced_layouts)):
                    return None
                if missing := [layout for layout in plan.traced_layouts if layout not in self.question.profile.curves]:
                    return Untraced(missing[0])
                option = self.traced.option_of(plan, capacities)
                if option.fits:
                    return self._timed(option), shares.reason
            elif num == 1 and self._fits_nowhere(layout, devices):
                return None  # accumulating takes no less memory
        return None

    def _timed(self, option: Option) -> Option:
        """The option with the seconds of a step, as those of all plans for the fastest devices."""
        step = comparable_step(self.question.profile, option.plan, self.question.kind) if self.question.kind else None
        if step is None:
            return option
        return replace(option, seconds=step.seconds, communication_share=step.communication_share)

    def _member(self, layout: Layout, device: Device, samples: int) -> Member:
        """A rank on this device; the samples that fit are known, so its memory is counted in samples."""
        seconds, fixed = _LEAST_SECONDS, 0.0
        if (work := self.question.profile.work.get(layout)) is not None:
            kind, share = _kind(self.question, device), max(1, samples // layout.world_size)
            low, high = (kind.seconds(work.step(size, 1)) for size in (share, 2 * share))
            seconds = max(seconds, (high - low) / share)
            fixed = max(0.0, low - share * seconds)
        return Member(seconds, 1, self._most_samples(layout, device), fixed)

    def _most_samples(self, layout: Layout, device: Device) -> int:
        """Most samples of a micro-batch that a rank on this device has the memory for."""
        question = self.question
        return largest_micro_batch(question.profile, layout, device.capacity_mib, question.extra, question.margin)

    def _fits_nowhere(self, layout: Layout, devices: Sequence[Device]) -> bool:
        """Whether some device has no room for a single sample."""
        return min(self._most_samples(layout, device) for device in devices) < 1
