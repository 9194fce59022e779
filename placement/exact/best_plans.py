"""Lists the fastest plans that the exact search finds for a candidate on 1, 2, 4, … devices, of one or several kinds.

For each number of devices there is the fastest plan without a pipeline and the fastest pipeline. The latter is
simulated, and whichever then takes less time is the answer. Cuts are as uneven, and recompute as partial, as pays.
Ranks can train a plan if its cut is even and if all blocks are recomputed or none.
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
from estimators.profile import ModelProfile
from placement.exact.candidate_ways import CandidateWays, StageUnits, slowest_links
from placement.exact.pipelines import Pipeline
from placement.exact.search import Found, find
from placement.exact.ways import Devices, Way
from placement.model import Cluster
from placement.pipelining.cuts import Cut, even_cut
from placement.pipelining.schedules import SCHEDULES
from placement.pipelining.shared_cores import seconds_on
from placement.pipelining.simulator import MessageSeconds, Simulation, simulate
from placement.planning.question import margin_for

_MORE_MEMORY = (1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 8.0, 16.0, 64.0)
"""Times the memory of the devices, tried in turn to say what comes closest to fitting."""
_NUM_HALVINGS = 5  # of the interval in which the memory that would be enough lies
_SIMULATION_GAIN = 0.75
"""A simulated pipeline is faster than the search says where messages hide behind computation, but hardly by more."""


@dataclass(frozen=True, slots=True)
class PlanStage:
    """One stage of a plan. ``blocks`` are the first one and the one behind the last; ``recomputed`` are block numbers.

    ``pass_seconds`` of one micro-batch include ``recompute_seconds``. ``bytes_by_category`` add up to the peak of a
    rank without its margin. ``saved_bytes`` are what recompute saves there.
    """

    kind: str
    blocks: tuple[int, int]
    recomputed: tuple[int, ...]
    pass_seconds: float
    compute_seconds: float
    recompute_seconds: float
    bytes_by_category: Mapping[str, int]
    saved_bytes: int
    offered_mib: int

    @property
    def peak_bytes(self) -> int:
        """Peak bytes of one rank, without the margin."""
        return sum(self.bytes_by_category.values())


@dataclass(frozen=True, slots=True)
class BestPlan:
    """A plan that the search found, with its cost.

    ``seconds`` of an optimizer step are FLOPs if no speed is known. ``prediction`` is for the rank that has least
    memory left, or exceeds it most. ``plan`` is what ranks would train; None if they cannot today. ``pipeline`` is the
    simulated one; None without several stages.
    """

    spread: Spread
    micro_batch: int
    num_micro_batches: int
    num_blocks: int
    stages: tuple[PlanStage, ...]
    seconds: float
    bubble_share: float
    communication_share: float
    prediction: Prediction
    plan: Plan | None
    pipeline: Pipeline | None

    @property
    def num_ranks(self) -> int:
        return self.spread.world_size

    @property
    def fullest(self) -> PlanStage:
        """The stage whose ranks have least memory left."""
        return _fullest(self.stages)

    @property
    def offered_mib(self) -> int:
        """MiB that a device of the fullest stage offers."""
        return self.fullest.offered_mib

    @property
    def fits(self) -> bool:
        """Whether the reservation of a rank is within what its device offers."""
        return self.prediction.reserved_mib <= self.offered_mib

    @property
    def recomputed(self) -> tuple[int, ...]:
        """The blocks that are recomputed."""
        return tuple(block for stage in self.stages for block in stage.recomputed)

    @property
    def cut(self) -> Cut:
        """Number of blocks of each stage."""
        return tuple(end - start for start, end in (stage.blocks for stage in self.stages))

    @property
    def devices(self) -> dict[str, int]:
        """Number of devices of each kind that it uses."""
        used: dict[str, int] = {}
        for stage in self.stages:
            used[stage.kind] = used.get(stage.kind, 0) + self.num_ranks // len(self.stages)
        return used


class PlanSearch:
    """The search for one candidate on one cluster."""

    def __init__(self, profile: ModelProfile, batch: int, cluster: Cluster, kinds: Mapping[str, DeviceKind]) -> None:
        """``kinds`` are those of the cluster's devices, by name. ``profile`` must have units and its plain layout."""
        self._profile, self._batch, self._margin = profile, batch, margin_for(cluster)
        self._kinds = [kinds[name] for name in _names(cluster)]
        self._offers = [_Offer.of(cluster, name) for name in _names(cluster)]
        self._ways = CandidateWays(profile, self._kinds, batch)
        self._known: dict[int, Sequence[Way]] = {}

    def best(self) -> list[BestPlan]:
        """The fastest plan that fits on each number of devices: powers of two, and the rest on unlike devices."""
        found = (self._best_on(most) for most in self._sizes())
        return [one for one in found if one is not None]

    def closest(self) -> BestPlan | None:
        """The plan that comes closest to fitting, if none fits; None if no way divides the batch."""
        too_little = 1.0
        for factor in _MORE_MEMORY:
            if (found := self._least(factor)) is not None:
                break
            too_little = factor
        else:
            return None
        for _ in range(_NUM_HALVINGS):
            middle = (too_little + factor) / 2
            if (less := self._least(middle)) is not None:
                found, factor = less, middle
            else:
                too_little = middle
        return found

    def _least(self, factor: float) -> BestPlan | None:
        """The plan that needs least memory, of the fastest ones with ``factor`` times the memory."""
        found = [one for most in self._sizes() if (one := self._best_on(most, factor)) is not None]
        return min(found, key=lambda one: one.prediction.reserved_mib / one.offered_mib, default=None)

    def _sizes(self) -> list[int]:
        """Numbers of devices, each twice the one before; the last one is that of all devices if kinds differ."""
        total = sum(len(offer.capacities_mib) for offer in self._offers)
        sizes = [2**place for place in range(total.bit_length())]
        return [*sizes, total] if len(self._offers) > 1 and sizes[-1] < total else sizes

    def _best_on(self, most: int, factor: float = 1.0) -> BestPlan | None:
        """The fastest plan on so many devices, or somewhat fewer if no way uses all of them."""
        if most not in self._known:
            fewest = 1 << (most - 1).bit_length() >> 1
            self._known[most] = self._ways.of(fewest + 1, most)
        ways = self._known[most]
        devices = [offer.devices(most, self._margin, factor) for offer in self._offers]
        alone, piped = (
            find([way for way in ways if (way.num_stages == 1) == is_alone], devices, batch=self._batch)
            for is_alone in (True, False)
        )
        made = [self._made(alone, ways, most)] if alone else []
        if piped and not any(one.seconds < piped.seconds * _SIMULATION_GAIN for one in made):
            made.append(self._made(piped, ways, most))
        return min(made, key=lambda one: float(f"{one.seconds:.6g}"), default=None)

    def _made(self, found: Found, ways: Sequence[Way], most: int) -> BestPlan:
        key = replace(found.spread, pp=1, schedule="1f1b"), found.micro_batch, len(found.cut)
        way = next(way for way in ways if (way.spread, way.micro_batch, way.num_stages) == key)
        offered_mib = {offer.name: offer.offered_mib(most) for offer in self._offers}
        return _Made(found, way, self._ways, self._kinds, offered_mib, self._margin, self._profile).plan()


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

    found: Found
    way: Way
    ways: CandidateWays
    kinds: Sequence[DeviceKind]
    offered_mib: Mapping[str, int]
    margin: Margin
    profile: ModelProfile

    def plan(self) -> BestPlan:
        """The plan with its cost; a pipeline is simulated."""
        found = self.found
        units = [*self._units()]
        stages = tuple(self._stage(place, one) for place, one in enumerate(units))
        fullest = _fullest(stages)
        margin_bytes = self.margin.bytes_for(fullest.peak_bytes, found.num_ranks)
        prediction = Prediction(fullest.peak_bytes, margin_bytes=margin_bytes)
        sizes = (found.micro_batch, found.num_micro_batches)
        start = (self._spread, *sizes, max(1, self.ways.num_units - 2), stages)
        plan = self._trained(stages)
        computing = found.num_micro_batches * sum(one.compute_seconds for one in stages) / len(stages)
        if len(units) == 1:
            computing += self.ways.update_seconds(self.way, units[0].kind)
            waiting = max(0.0, 1 - computing / found.seconds)
            seconds = found.seconds * self.kinds[0].sharing(found.num_ranks)
            return BestPlan(*start, seconds, 0.0, waiting, prediction, plan, None)
        simulation = self._simulation(units)
        passes = found.num_micro_batches * sum(one.pass_seconds for one in stages) / len(stages)
        waiting = simulation.communication_share + max(0.0, passes - computing) / simulation.makespan_seconds
        cut = tuple(end - begin for begin, end in (one.blocks for one in stages))
        offered_mib = fullest.offered_mib
        drawn = Pipeline(simulation.schedule, cut, found.micro_batch, plan, simulation, prediction, offered_mib)
        seconds = seconds_on(simulation, self.kinds[0])
        return BestPlan(*start, seconds, simulation.bubble_share, waiting, prediction, plan, drawn)

    @property
    def _spread(self) -> Spread:
        """The spread, with recompute only if any block is recomputed."""
        again = bool(self.found.recomputed)
        return replace(self.found.spread, recompute=again, selective=again and self.found.spread.selective)

    def _units(self) -> Iterator[StageUnits]:
        recomputed, names = self.found.recomputed, list(self.offered_mib)
        bounds = pairwise(accumulate(self.found.cut, initial=0))
        for (start, end), name in zip(bounds, self.found.devices, strict=True):
            again = frozenset(unit for unit in recomputed if start <= unit < end)
            yield StageUnits(start, end, names.index(name), again)

    def _stage(self, place: int, units: StageUnits) -> PlanStage:
        costs, here = self.way.costs[units.kind], slice(units.start, units.end)
        again = sorted(units.recomputed)
        first = 1 if self.ways.num_units > 1 else 0  # the part before the blocks is a unit too
        blocks = max(units.start, first) - first, min(units.end, self.ways.num_units - first) - first
        held = min(self.found.num_micro_batches, len(self.found.cut) - place)
        saved = held * float((costs.kept_bytes - costs.recomputed_kept_bytes)[again].sum())
        extra = float(costs.recompute_seconds[again].sum())
        return PlanStage(
            self.found.devices[place],
            (blocks[0], max(blocks)),
            tuple(unit - first for unit in again),
            float((costs.forward_seconds + costs.backward_seconds)[here].sum()) + extra,
            self.ways.compute_seconds(self.way, units),
            extra,
            self._bytes(place, units),
            round(saved - costs.restored_bytes) if again else 0,
            self.offered_mib[self.found.devices[place]],
        )

    def _bytes(self, place: int, units: StageUnits) -> dict[str, int]:
        """Peak bytes of a rank by category."""
        costs = self.way.costs[units.kind]
        peak_bytes, states = self.found.peak_bytes[place], int(costs.state_bytes[units.start : units.end].sum())
        parameters = min(states, int(self.ways.parameter_bytes(self.way, units)))
        transient = int(costs.transient_bytes + (costs.restored_bytes if units.recomputed else 0.0))
        return {
            "parameters": parameters,
            "gradients and optimizer": states - parameters,
            "activations": peak_bytes - states - transient,
            "transient": transient,
        }

    def _trained(self, stages: Sequence[PlanStage]) -> Plan | None:
        """The plan for ranks; None if they cannot train it today."""
        cut = tuple(end - begin for begin, end in (stage.blocks for stage in stages))
        num_recomputed = sum(len(stage.recomputed) for stage in stages)
        is_even = cut == even_cut(sum(cut), len(cut)) and len({stage.kind for stage in stages}) == 1
        if not is_even or num_recomputed not in (0, sum(cut)):
            return None
        plan = Plan(self.found.micro_batch, self.found.num_micro_batches, **self._spread.values)
        return None if any(layout in self.profile.refusals for layout in plan.layouts) else plan

    def _simulation(self, units: Sequence[StageUnits]) -> Simulation:
        costs = self.ways.stage_costs(self.way, units)
        schedule = SCHEDULES["1f1b"](len(units), self.found.num_micro_batches)
        return simulate(schedule, costs, self._message_seconds([one.kind for one in units]))

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


def _fullest(stages: Sequence[PlanStage]) -> PlanStage:
    """The stage whose ranks have least memory left."""
    return max(stages, key=lambda stage: stage.peak_bytes / stage.offered_mib)


def _names(cluster: Cluster) -> list[str]:
    """Kinds of the devices, in the order of the cluster."""
    return list(dict.fromkeys(device.kind for device in cluster.devices))
