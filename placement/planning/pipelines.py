"""Prices the pipelines of one candidate: degrees, schedules, cuts and micro-batches, from the costs of its units.

Nothing is traced: times are simulated from the work of each unit, and memory is added up from states, activations in
flight, and what else a pass of the whole model holds. ``scamp_service.sizing`` traces the few pipelines that matter.
Ranks train GPipe and 1F1B with equal numbers of blocks today; such a pipeline has a ``plan``. All others are only
planned.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

from estimators.axes import SCHEDULES as TRAINED
from estimators.devices.communication import message_seconds
from estimators.devices.kind import FLOP_COUNTER, DeviceKind
from estimators.memory import Margin
from estimators.model import Layout, Plan, Prediction
from estimators.peaks.units import Unit
from estimators.profile import ModelProfile
from estimators.work import Work
from placement.model import Cluster
from placement.planning.cuts import Cut, Demand, Piece, best_cut, even_cut, smallest_cut
from placement.planning.passes import Schedule
from placement.planning.planner import degrees, divisors, margin_for
from placement.planning.schedules import SCHEDULES
from placement.planning.simulator import Simulation, StageCost, simulate

FORWARD_SHARE = 1 / 3
"""Assumed share of the forward pass in the time of a unit: the backward pass has two products of matrices for each one
of the forward pass. Its gradients of inputs and of weights are assumed to take the same time."""

MOST_MICRO_BATCHES = 8
"""Most micro-batches for each rank that are tried: the bubble of 1F1B is then at most 1/9 of the step."""
MOST_BY_FLOPS = 4
"""The same where FLOPs stand for time, which do not show that small micro-batches use a device less well."""

MOST_PASSES = 4096
"""Most micro-batches × ranks that are simulated, if there is a choice: a simulation of so many takes up to a second."""
MANY_RANKS = 8
"""On more ranks only one number of micro-batches is tried."""

_CHUNKS = {"1f1b": 1, "gpipe": 1, "zb-h1": 1, "interlaced": 1, "interleaved": 2, "zbv": 2, "dualpipev": 2}
"""Stages of each rank by schedule. 3F1B is missing: only a model that feeds its output back runs it."""
_TRANSIENT = ("scratch", "workspace", "batch", "slack")


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One pipeline and its cost. ``cut`` has the number of blocks of each stage.

    ``prediction`` is for the rank that needs most. ``plan`` is what ranks would train; None if they cannot today.
    """

    schedule: Schedule
    cut: Cut
    micro_batch: int
    plan: Plan | None
    simulation: Simulation
    prediction: Prediction
    offered_mib: int

    @property
    def seconds(self) -> float:
        """Seconds of one optimizer step; FLOPs without a device kind."""
        return self.simulation.makespan_seconds

    @property
    def fits(self) -> bool:
        """Whether one rank's reservation is within ``offered_mib``."""
        return self.prediction.reserved_mib <= self.offered_mib

    @property
    def is_even(self) -> bool:
        """Whether all stages have as equal numbers of blocks as possible, as ranks divide them."""
        return self.cut == even_cut(sum(self.cut), len(self.cut))


def list_pipelines(
    units: Sequence[Unit], profile: ModelProfile, *, batch: int, cluster: Cluster, kind: DeviceKind | None
) -> list[Pipeline]:
    """The best pipeline of each degree and schedule for ``batch`` samples per optimizer step, the fastest first.

    Those that fit come before those that do not. Without a ``kind`` FLOPs stand for seconds; without links messages
    take no time. Empty for a model whose units do not run one after another.
    """
    each = [unit for unit in units for _ in range(unit.count)]
    if len(each) < 4:  # the ends, and two blocks
        return []
    candidate = _Candidate(each, profile, batch, kind or FLOP_COUNTER, margin_for(cluster))
    found: list[Pipeline] = []
    for num_ranks, offered_mib in degrees(cluster):
        if num_ranks > 1:
            found += _of_degree(candidate, num_ranks, offered_mib)
    return sorted(found, key=order)


def order(pipeline: Pipeline) -> tuple[bool, float, int, bool]:
    """The better, the smaller: those that fit, then the faster, on fewer ranks, and what ranks can train today."""
    seconds = float(f"{pipeline.seconds:.6g}")  # sums of the same numbers differ by rounding
    return not pipeline.fits, seconds, pipeline.schedule.num_ranks, pipeline.plan is None


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the model: what one micro-batch costs on the rank that has it."""

    seconds: float
    num_params: float
    kept_bytes: int
    output_bytes: int

    def __add__(self, following: _Part) -> _Part:
        return _Part(
            self.seconds + following.seconds,
            self.num_params + following.num_params,
            self.kept_bytes + following.kept_bytes,
            following.output_bytes,
        )

    def divided(self, num_parts: int) -> _Part:
        """The share of one of the ranks that divide its layers; each passes on its share of the whole output."""
        kept_bytes = self.kept_bytes // num_parts
        return _Part(self.seconds / num_parts, self.num_params / num_parts, kept_bytes, self.output_bytes)


@dataclass(frozen=True, slots=True)
class _Candidate:
    units: Sequence[Unit]
    profile: ModelProfile
    batch: int
    kind: DeviceKind
    margin: Margin

    @property
    def num_blocks(self) -> int:
        return len(self.units) - 2

    def parts(self, micro_batch: int) -> list[_Part]:
        """One part for each unit."""
        return [
            _Part(
                self._seconds(unit.fixed + unit.per_sample * micro_batch),
                unit.num_params,
                max(0, unit.activations.at(micro_batch)),
                max(0, unit.output.at(micro_batch)),
            )
            for unit in self.units
        ]

    def piece(self, part: _Part) -> Piece:
        forward = part.seconds * FORWARD_SHARE
        state_bytes = int(self._share(part) * self.profile.state_bytes)
        return Piece(forward, part.seconds - forward, state_bytes, part.kept_bytes, part.output_bytes)

    def cost(self, part: _Part) -> StageCost:
        piece = self.piece(part)
        half = piece.backward_seconds / 2
        update = self._share(part) * self._seconds(self.profile.work[Layout()].update)
        sizes = (piece.kept_bytes, piece.output_bytes, piece.state_bytes)
        return StageCost(piece.forward_seconds, half, half, *sizes, update)

    def transient_bytes(self, micro_batch: int) -> int | None:
        """Bytes that passes need beside states and activations; None if nothing is known of this micro-batch."""
        try:
            parts = self.profile.curves[Layout()].parts(micro_batch)
        except ValueError:  # beyond the largest micro-batch of a model whose sizes are not affine
            return None
        return sum(parts.get(name, 0) for name in _TRANSIENT)

    def _share(self, part: _Part) -> float:
        return part.num_params / max(1, self.profile.num_params)

    def _seconds(self, work: Work) -> float:
        return max(0.0, self.kind.seconds(work))


def _of_degree(candidate: _Candidate, num_ranks: int, offered_mib: int) -> Iterator[Pipeline]:
    """The best pipeline of each schedule on ``num_ranks``; a second one if another cut than that of ranks is better."""
    for name, num_chunks in _CHUNKS.items():
        made: list[Pipeline] = []
        for num in _numbers(candidate, num_ranks):
            if (one := _Shape.of(candidate, name, num_ranks, num, num_chunks, offered_mib)) is not None:
                made += one.pipelines()
        if made:
            best_even, best = min(filter(_is_even, made), key=order), min(made, key=order)
            yield best_even
            if order(best) < order(best_even):
                yield best


def _is_even(pipeline: Pipeline) -> bool:
    return pipeline.is_even


def _numbers(candidate: _Candidate, num_ranks: int) -> list[int]:
    """The numbers of micro-batches to try, at most three of them: one for each rank, or more."""
    most = MOST_BY_FLOPS if candidate.kind is FLOP_COUNTER else MOST_MICRO_BATCHES
    usable = [num for num in divisors(candidate.batch) if num_ranks <= num <= most * num_ranks]
    small = [num for num in usable if num * num_ranks <= MOST_PASSES] or usable[-1:]
    return small[: 3 if num_ranks <= MANY_RANKS else 1]


@dataclass(frozen=True, slots=True)
class _Shape:
    """Everything about a pipeline but its cut. ``ends`` are the costs of the stages that all ranks share, if any."""

    candidate: _Candidate
    schedule: Schedule
    micro_batch: int
    blocks: Sequence[_Part]
    ends: Sequence[_Part]
    demand: Demand
    offered_mib: int
    transient_bytes: int

    @classmethod
    def of(
        cls, candidate: _Candidate, name: str, num_ranks: int, num: int, num_chunks: int, offered_mib: int
    ) -> _Shape | None:
        """None if there is no such pipeline, or nothing is known of its micro-batch."""
        micro_batch, num_stages = candidate.batch // num, num_ranks * num_chunks
        transient_bytes = candidate.transient_bytes(micro_batch)
        if transient_bytes is None or candidate.num_blocks < num_stages:
            return None
        try:
            schedule = SCHEDULES[name](num_ranks, num)
        except ValueError:  # not with this number of micro-batches
            return None
        first, *blocks, last = candidate.parts(micro_batch)
        ends: list[_Part] = []
        if name == "interlaced":
            ends = [first.divided(num_ranks), last.divided(num_ranks)]
            if first.num_params + last.num_params < sum(block.num_params for block in blocks) / num_ranks:
                return None  # the ends are smaller than a stage
        else:
            blocks = [first + blocks[0], *blocks[1:-1], blocks[-1] + last]
        # Stages of a rank that has two hold more micro-batches than in 1F1B: they are cut by time alone.
        demand = Demand("gpipe" if name == "gpipe" or num_chunks > 1 else "1f1b", num_stages, num)
        return cls(candidate, schedule, micro_batch, blocks, ends, demand, offered_mib, transient_bytes)

    def pipelines(self) -> list[Pipeline]:
        """One with the cut of ranks, and one with the best cut."""
        pieces = [self.candidate.piece(block) for block in self.blocks]
        largest = self.candidate.margin.largest_peak_bytes(self.offered_mib, self.schedule.num_ranks)
        has_chunks = self.demand.num_stages > self.schedule.num_ranks
        best = best_cut(pieces, self.demand, None if has_chunks else largest - self.transient_bytes)
        even = even_cut(len(pieces), self.demand.num_stages)
        return [self._priced(cut) for cut in dict.fromkeys([even, best or smallest_cut(pieces, self.demand)])]

    def _priced(self, cut: Cut) -> Pipeline:
        stages = [self.candidate.cost(part) for part in (*self.ends[:1], *_joined(self.blocks, cut), *self.ends[1:])]
        simulation = simulate(self.schedule, stages, self._message_seconds)
        num_ranks, margin, name = self.schedule.num_ranks, self.candidate.margin, self.schedule.name
        peak_bytes = max(simulation.peak_bytes) + self.transient_bytes
        prediction = Prediction(peak_bytes, margin_bytes=margin.bytes_for(peak_bytes, num_ranks))
        plan = None
        if name in TRAINED and cut == even_cut(len(self.blocks), num_ranks):
            plan = Plan(self.micro_batch, self.schedule.num_micro_batches, pp=num_ranks, schedule=name)
        return Pipeline(self.schedule, cut, self.micro_batch, plan, simulation, prediction, self.offered_mib)

    def _message_seconds(self, sender: int, receiver: int, num_bytes: int) -> float:
        links = self.candidate.kind.links
        return message_seconds(num_bytes, sender, receiver, links) if links is not None else 0.0


def _joined(blocks: Sequence[_Part], cut: Cut) -> Iterator[_Part]:
    start = 0
    for size in cut:
        yield reduce(operator.add, blocks[start : start + size])
        start += size
