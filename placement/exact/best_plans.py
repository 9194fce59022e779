"""Lists the fastest plans that the exact search finds for a candidate on 1, 2, 4, … devices, of one or several kinds.

For each number of devices there is the fastest plan without a pipeline and the fastest pipeline. The latter is
simulated, and whichever then takes less time is the answer. Cuts are as uneven, and recompute as partial, as pays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from estimators.axes import Spread
from estimators.devices.communication import message_seconds
from estimators.devices.kind import DeviceKind
from estimators.memory import Margin
from estimators.model import Plan, Prediction
from estimators.pipelining.schedules import SCHEDULES
from placement.exact.candidate_ways import CandidateWays, StageUnits, slowest_links
from placement.exact.search import StagedPlan, search
from placement.exact.ways import Devices, Way
from placement.model import Cluster
from placement.option import Evidence, Option
from placement.pipelining.cuts import is_even
from placement.pipelining.shared_cores import seconds_on
from placement.pipelining.simulator import MessageSeconds, Simulation, simulate_step
from placement.planning.question import Question
from placement.refinement import Pipeline, PlanStage, Refinement, fullest_of

_MORE_MEMORY = (1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 8.0, 16.0, 64.0)
"""Times the memory of the devices, tried in turn to say what comes closest to fitting."""
_NUM_HALVINGS = 5  # of the interval in which the memory that would be enough lies
_SIMULATION_GAIN = 0.75
"""A simulated pipeline is faster than the search says where messages hide behind computation, but hardly by more."""


class ExactSearch:
    """The search for one candidate on one cluster."""

    def __init__(self, question: Question, kinds: Mapping[str, DeviceKind]) -> None:
        """``kinds`` are those of the cluster's devices, by name. The profile must have units and its plain layout."""
        self._question, names = question, _names(question.cluster)
        self._kinds = [kinds[name] for name in names]
        self._offers = [_Offer.of(question.cluster, name) for name in names]
        self._ways = CandidateWays(question.profile, self._kinds, question.batch)
        self._known: dict[int, Sequence[Way]] = {}

    def best(self) -> list[Option]:
        """The fastest plan that fits on each number of devices: powers of two, and the rest on different devices."""
        options = (self._best_on(most) for most in self._sizes())
        return [option for option in options if option is not None]

    def smaller(self, option: Option, factor: float) -> Option | None:
        """The fastest plan on as many devices as one that ``best`` found, with ``factor`` times their memory.

        It takes the place of one that needs more memory by its trace than by the costs of its units.
        """
        return self._best_on(next(most for most in self._sizes() if most >= option.plan.world_size), factor)

    def closest(self) -> Option | None:
        """The plan that comes closest to fitting, if none fits; None if no way divides the batch."""
        too_little = 1.0
        for factor in _MORE_MEMORY:
            if (least := self._smallest_plan(factor)) is not None:
                break
            too_little = factor
        else:
            return None
        for _ in range(_NUM_HALVINGS):
            middle = (too_little + factor) / 2
            if (less := self._smallest_plan(middle)) is not None:
                least, factor = less, middle
            else:
                too_little = middle
        return least

    def _smallest_plan(self, factor: float) -> Option | None:
        """The plan that needs least memory, of the fastest ones with ``factor`` times the memory."""
        options = [option for most in self._sizes() if (option := self._best_on(most, factor)) is not None]
        return min(options, key=lambda option: option.prediction.reserved_mib / option.offered_mib, default=None)

    def _sizes(self) -> list[int]:
        """Numbers of devices, each twice the one before; the last one is that of all devices if kinds differ."""
        total = sum(len(offer.capacities_mib) for offer in self._offers)
        sizes = [2**index for index in range(total.bit_length())]
        return [*sizes, total] if len(self._offers) > 1 and sizes[-1] < total else sizes

    def _best_on(self, most: int, factor: float = 1.0) -> Option | None:
        """The fastest plan on this many devices, or on somewhat fewer if no way uses all of them."""
        if most not in self._known:
            fewest = 1 << (most - 1).bit_length() >> 1
            self._known[most] = self._ways.of(fewest + 1, most)
        ways = self._known[most]
        devices = [offer.devices(most, self._question.margin, factor) for offer in self._offers]
        alone, piped = (
            search([way for way in ways if (way.num_stages == 1) == is_alone], devices, batch=self._question.batch)
            for is_alone in (True, False)
        )
        options = [self._option_of(alone, ways, most)] if alone else []
        enough_seconds = piped.seconds * _SIMULATION_GAIN if piped else 0.0
        if piped and not any(option.seconds is not None and option.seconds < enough_seconds for option in options):
            options.append(self._option_of(piped, ways, most))
        return min(options, key=lambda option: option.comparable_seconds, default=None)

    def _option_of(self, plan: StagedPlan, ways: Sequence[Way], most: int) -> Option:
        key = replace(plan.spread, pp=1), plan.micro_batch, len(plan.cut)
        way = next(way for way in ways if (way.spread, way.micro_batch, way.num_stages) == key)
        offered_mib = {offer.name: offer.offered_mib(most) for offer in self._offers}
        return _Made(plan, way, self._ways, self._kinds, offered_mib, self._question).option()


@dataclass(frozen=True, slots=True)
class _Offer:
    """Devices of one kind; ``capacities_mib`` are those of each, the largest first."""

    name: str
    capacities_mib: tuple[int, ...]

    @classmethod
    def of(cls, cluster: Cluster, name: str) -> _Offer:
        sizes = (device.capacity_mib for device in cluster.devices if device.kind == name)
        return cls(name, tuple(sorted(sizes, reverse=True)))

    def offered_mib(self, most: int) -> int:
        """MiB of the smallest of the ``most`` largest devices."""
        return self.capacities_mib[min(most, len(self.capacities_mib)) - 1]

    def devices(self, most: int, margin: Margin, factor: float) -> Devices:
        """Up to ``most`` devices for the search, with ``factor`` times their memory."""
        offered_mib = int(self.offered_mib(most) * factor)
        capacity_bytes = max(0, margin.largest_peak_bytes(offered_mib, most))
        return Devices(self.name, min(most, len(self.capacities_mib)), capacity_bytes)


@dataclass(frozen=True, slots=True)
class _Made:
    """A plan that was found, and everything that its cost follows from."""

    staged_plan: StagedPlan
    way: Way
    ways: CandidateWays
    kinds: Sequence[DeviceKind]
    offered_mib: Mapping[str, int]
    question: Question

    def option(self) -> Option:
        """The option with its cost; a pipeline is simulated."""
        staged_plan = self.staged_plan
        units = [*self._units()]
        stages = tuple(self._stage(index, unit) for index, unit in enumerate(units))
        fullest = fullest_of(stages)
        margin_bytes = self.question.margin.bytes_for(fullest.peak_bytes, staged_plan.num_ranks)
        plan = Plan(staged_plan.micro_batch, staged_plan.num_micro_batches, **self._spread(stages).values)
        unpriced = Option(
            plan,
            Prediction(fullest.peak_bytes, margin_bytes=margin_bytes),
            fullest.offered_mib,
            Evidence.UNITS,
            refinement=Refinement(self._untrained(plan, stages), stages=stages),
        )
        return self._piped(unpriced, units) if len(units) > 1 else self._single_stage(unpriced, units[0])

    def _single_stage(self, option: Option, units: StageUnits) -> Option:
        """The option with the seconds of its only stage."""
        computing = self._computing(option) + self.ways.update_seconds(self.way, units.kind)
        waiting = max(0.0, 1 - computing / self.staged_plan.seconds)
        seconds = self.staged_plan.seconds * self.kinds[0].sharing(self.staged_plan.num_ranks)
        return replace(option, seconds=seconds, communication_share=waiting, bubble_share=0.0)

    def _piped(self, option: Option, units: Sequence[StageUnits]) -> Option:
        """The option with the seconds of its simulated pipeline."""
        stages, simulation = option.refinement.stages, self._simulation(units)
        passes = self.staged_plan.num_micro_batches * sum(stage.pass_seconds for stage in stages) / len(stages)
        beside = max(0.0, passes - self._computing(option)) / simulation.makespan_seconds
        pipeline = Pipeline(simulation.schedule, option.refinement.cut, simulation)
        return replace(
            option,
            seconds=seconds_on(simulation, self.kinds[0]),
            communication_share=simulation.communication_share + beside,
            bubble_share=simulation.bubble_share,
            refinement=replace(option.refinement, pipeline=pipeline),
        )

    def _computing(self, option: Option) -> float:
        """Seconds in which a rank of an average stage computes."""
        stages = option.refinement.stages
        return self.staged_plan.num_micro_batches * sum(stage.compute_seconds for stage in stages) / len(stages)

    def _spread(self, stages: Sequence[PlanStage]) -> Spread:
        """The spread with its cut, and with recompute only if any block is recomputed."""
        cut = tuple(end - begin for begin, end in (stage.blocks for stage in stages))
        recomputed = tuple(block for stage in stages for block in stage.recomputed)
        return replace(
            self.staged_plan.spread,
            recompute=bool(recomputed),
            selective=bool(recomputed) and self.staged_plan.spread.selective,
            recomputed=recomputed if len(recomputed) < sum(cut) else (),
            cut=() if is_even(cut) else cut,
        )

    def _units(self) -> Iterator[StageUnits]:
        recomputed, names = self.staged_plan.recomputed, list(self.offered_mib)
        bounds = pairwise(accumulate(self.staged_plan.cut, initial=0))
        for (start, end), name in zip(bounds, self.staged_plan.devices, strict=True):
            recomputed_units = frozenset(unit for unit in recomputed if start <= unit < end)
            yield StageUnits(start, end, names.index(name), recomputed_units)

    def _stage(self, index: int, units: StageUnits) -> PlanStage:
        costs, here = self.way.costs[units.kind], slice(units.start, units.end)
        recomputed_units = sorted(units.recomputed)
        first = 1 if self.ways.num_units > 1 else 0  # the part before the blocks is a unit too
        blocks = max(units.start, first) - first, min(units.end, self.ways.num_units - first) - first
        held = min(self.staged_plan.num_micro_batches, len(self.staged_plan.cut) - index)
        saved = held * float((costs.kept_bytes - costs.recomputed_kept_bytes)[recomputed_units].sum())
        extra = float(costs.recompute_seconds[recomputed_units].sum())
        return PlanStage(
            kind=self.staged_plan.devices[index],
            num_ranks=self.way.num_ranks,
            blocks=(blocks[0], max(blocks)),
            recomputed=tuple(unit - first for unit in recomputed_units),
            pass_seconds=float((costs.forward_seconds + costs.backward_seconds)[here].sum()) + extra,
            compute_seconds=self.ways.compute_seconds(self.way, units),
            recompute_seconds=extra,
            bytes_by_category=self._bytes(index, units),
            saved_bytes=round(saved - costs.restored_bytes) if recomputed_units else 0,
            offered_mib=self.offered_mib[self.staged_plan.devices[index]],
        )

    def _bytes(self, index: int, units: StageUnits) -> dict[str, int]:
        """Peak bytes of a rank by category."""
        costs = self.way.costs[units.kind]
        peak_bytes, states = self.staged_plan.peak_bytes[index], int(costs.state_bytes[units.start : units.end].sum())
        parameters = min(states, int(self.ways.parameter_bytes(self.way, units)))
        transient = int(costs.transient_bytes + (costs.restored_bytes if units.recomputed else 0.0))
        return {
            "parameters": parameters,
            "gradients and optimizer": states - parameters,
            "activations": peak_bytes - states - transient,
            "transient": transient,
        }

    def _untrained(self, plan: Plan, stages: Sequence[PlanStage]) -> str:
        """Why ranks cannot train these stages; empty if they can."""
        if len({stage.kind for stage in stages}) > 1:
            return "devices"
        return "trace" if any(map(self.question.profile.refusal, plan.layouts)) else ""

    def _simulation(self, units: Sequence[StageUnits]) -> Simulation:
        costs = self.ways.stage_costs(self.way, units)
        schedule = SCHEDULES["1f1b"](len(units), self.staged_plan.num_micro_batches)
        return simulate_step(schedule, costs, self._message_seconds([unit.kind for unit in units]))

    def _message_seconds(self, on: Sequence[int]) -> MessageSeconds:
        """Seconds of a message between ranks of two stages, which are on these kinds of devices.

        Ranks fill the nodes of their kind one stage after another, or shards after stages on devices of one kind.
        """
        between = slowest_links(self.kinds)
        step = self.way.spread.tp if between is None else self.way.num_ranks

        def seconds(sender: int, receiver: int, num_bytes: int) -> float:
            links = self.kinds[on[sender]].links
            if on[sender] != on[receiver] and between is not None:
                return message_seconds(num_bytes, 0, int(between.domain_size.value), between)
            return message_seconds(num_bytes, sender * step, receiver * step, links) if links is not None else 0.0

        return seconds


def _names(cluster: Cluster) -> list[str]:
    """Kinds of the devices, in the order of the cluster."""
    return list(dict.fromkeys(device.kind for device in cluster.devices))
