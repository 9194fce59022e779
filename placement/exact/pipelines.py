"""Prices the pipelines of one candidate: degrees, schedules, cuts and micro-batches, from the costs of its units.

Nothing is traced: times are simulated from the work of each unit, and memory is added up from states, activations in
flight, and what else a pass of the whole model holds. ``scamp_service.sizing`` traces the few pipelines that matter.
Ranks train all orders but ``interlaced``. Simulations take time, so pipelines are simulated in the order of their lower
bounds (``pipelining.bounds``), until none that is left can be better than the best one found.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Literal

from estimators.axes import SCHEDULES as TRAINED
from estimators.axes import Spread
from estimators.devices.communication import message_seconds
from estimators.devices.kind import FLOP_COUNTER, DeviceKind
from estimators.memory import Margin
from estimators.model import Layout, Plan, Prediction
from estimators.peaks.units import Unit
from estimators.pipelining.passes import PipelineSchedule
from estimators.pipelining.schedules import SCHEDULES
from estimators.profile import ModelProfile
from estimators.work import Work
from placement.exact.micro_batches import MOST_PASSES, numbers
from placement.option import Evidence, Option
from placement.pipelining.bounds import least_bytes, least_seconds
from placement.pipelining.cuts import Cut, CutTarget, Piece, best_cut, even_cut, is_even, smallest_cut
from placement.pipelining.shared_cores import seconds_on
from placement.pipelining.simulator import StageCost, simulate_step
from placement.planning.question import Question, degrees
from placement.pricing.unit_costs import transient_bytes
from placement.refinement import Pipeline, Refinement

MANY_RANKS = 8
"""Ranks beyond which only one number of micro-batches is tried, and only the best pipelines are listed, whatever their
schedule."""

_CHUNKS = {"1f1b": 1, "gpipe": 1, "zb-h1": 1, "interlaced": 1, "interleaved": 2, "zbv": 2, "dualpipev": 2}
"""Stages of each rank by schedule."""


def list_pipelines(question: Question) -> list[Option]:
    """The best pipeline of each degree and schedule, the fastest first.

    On more than ``MANY_RANKS`` it is the best of all schedules, and the best that ranks can train. Those that fit come
    before those that do not. Without a kind of devices FLOPs stand for seconds; without links messages take no time.
    Empty for a model whose blocks do not run once each, one after another, or whose hints allow no such pipeline.
    """
    units = question.profile.units
    if not question.profile.in_order or sum(unit.count for unit in units) < 4:  # the ends, and two blocks
        return []
    candidate = _Candidate(units, question.profile, question.batch, question.kind or FLOP_COUNTER, question.margin)
    options: list[Option] = []
    for num_ranks, offered_mib in degrees(question.cluster):
        if num_ranks > 1 and question.constraints.allow(Spread(pp=num_ranks)):
            options += _of_degree(candidate, num_ranks, offered_mib)
    return [_on_shared_cores(option, candidate.kind) for option in sorted(options, key=order)]


def _on_shared_cores(option: Option, kind: DeviceKind) -> Option:
    """The option with the seconds that its ranks take if they share the cores of a host."""
    pipeline = option.refinement.pipeline
    return replace(option, seconds=seconds_on(pipeline.simulation, kind)) if pipeline else option


_Order = tuple[bool, float, int, bool]


def order(option: Option) -> _Order:
    """The better, the smaller: those that fit, then the faster, on fewer ranks, and what ranks can train today.

    Pipelines are compared by their simulated seconds, as if each rank had a device for itself.
    """
    pipeline = option.refinement.pipeline
    assert pipeline is not None
    seconds = pipeline.simulation.makespan_seconds
    return _order(option.fits, seconds, option.plan.world_size, option.trained is not None)


def _order(fits: bool, seconds: float, num_ranks: int, is_trained: bool) -> _Order:
    mantissa, exponent = math.frexp(seconds)  # six digits, because sums of the same numbers differ by rounding
    return not fits, math.ldexp(round(mantissa * 2**20), exponent - 20), num_ranks, not is_trained


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the model: what one micro-batch costs on the rank that has it."""

    forward_seconds: float
    backward_seconds: float
    num_params: float
    kept_bytes: int
    output_bytes: int

    def __add__(self, following: _Part) -> _Part:
        return _Part(
            self.forward_seconds + following.forward_seconds,
            self.backward_seconds + following.backward_seconds,
            self.num_params + following.num_params,
            self.kept_bytes + following.kept_bytes,
            following.output_bytes,
        )

    def divided(self, num_parts: int) -> _Part:
        """The share of one of the ranks that divide its layers; each passes on its share of the whole output."""
        return _Part(
            self.forward_seconds / num_parts,
            self.backward_seconds / num_parts,
            self.num_params / num_parts,
            self.kept_bytes // num_parts,
            self.output_bytes,
        )


@dataclass(frozen=True)
class _Candidate:
    units: Sequence[Unit]
    profile: ModelProfile
    batch: int
    kind: DeviceKind
    margin: Margin

    @property
    def num_blocks(self) -> int:
        return sum(unit.count for unit in self.units) - 2

    def parts(self, micro_batch: int) -> list[_Part]:
        """One part for each unit, or for each of several equal ones."""
        parts: list[_Part] = []
        for unit in self.units:
            part = _Part(
                self._seconds(unit.forward.at(micro_batch)),
                self._seconds(unit.backward.at(micro_batch)),
                unit.num_params,
                max(0, unit.activations.at(micro_batch)),
                max(0, unit.output.at(micro_batch)),
            )
            parts += [part] * unit.count
        return parts

    def piece(self, part: _Part) -> Piece:
        state_bytes = int(self._share(part) * self.profile.state_bytes)
        return Piece(part.forward_seconds, part.backward_seconds, state_bytes, part.kept_bytes, part.output_bytes)

    def cost(self, part: _Part) -> StageCost:
        """Gradients of inputs and of weights are assumed to take the same time: the trace does not separate them."""
        piece = self.piece(part)
        half = piece.backward_seconds / 2
        sizes = (piece.kept_bytes, piece.output_bytes, piece.state_bytes)
        return StageCost(piece.forward_seconds, half, half, *sizes, self._share(part) * self._update_seconds)

    def message_seconds(self, sender: int, receiver: int, num_bytes: int) -> float:
        links = self.kind.links
        return message_seconds(num_bytes, sender, receiver, links) if links is not None else 0.0

    @cached_property
    def _update_seconds(self) -> float:
        return self._seconds(self.profile.work[Layout()].update)

    def _share(self, part: _Part) -> float:
        return part.num_params / max(1, self.profile.num_params)

    def _seconds(self, work: Work) -> float:
        return max(0.0, self.kind.seconds(work))


def _of_degree(candidate: _Candidate, num_ranks: int, offered_mib: int) -> Iterator[Option]:
    """The best pipeline of each schedule, or of all; a second one if another cut than that of ranks is better."""
    drafts = list(_drafts(candidate, num_ranks, offered_mib))
    names = _CHUNKS if num_ranks <= MANY_RANKS else [None]
    for name in names:
        named_drafts = [draft for draft in drafts if name in (draft.name, None)]
        best = _best(named_drafts)
        simple = _best(draft for draft in named_drafts if (is_even(draft.cut) if name else draft.is_trained))
        if simple is not None:
            yield simple
        if best is not None and (simple is None or order(best) < order(simple)):
            yield best


def _best(drafts: Iterable[_Draft]) -> Option | None:
    """The best pipeline, by as few simulations as possible; of equally good ones, the first."""
    best: tuple[_Order, int, Option] | None = None
    in_order = sorted(
        ((draft.least, index, draft) for index, draft in enumerate(drafts)), key=operator.itemgetter(0, 1)
    )
    for least, index, draft in in_order:
        if best is not None and best[:2] <= (least, index):
            break
        if (option := draft.option) is not None and (best is None or (order(option), index) < best[:2]):
            best = order(option), index, option
    return best[2] if best is not None else None


def _drafts(candidate: _Candidate, num_ranks: int, offered_mib: int) -> Iterator[_Draft]:
    """All pipelines to choose from: of each schedule with each number of micro-batches, the even and the best cut."""
    for num in _numbers(candidate, num_ranks):
        shape = _Shape.of(candidate, num_ranks, num, offered_mib)
        if shape is not None:
            yield from shape.drafts()


def _numbers(candidate: _Candidate, num_ranks: int) -> list[int]:
    """The numbers of micro-batches to try, at most three of them. There may be no choice but too many."""
    constraints, by_flops = candidate.profile.divisions.constraints, candidate.kind is FLOP_COUNTER
    usable = numbers(candidate.batch, num_ranks, constraints, by_flops=by_flops)
    small = [num for num in usable if num * num_ranks <= MOST_PASSES] or usable[-1:]
    return small[: 3 if num_ranks <= MANY_RANKS else 1]


@dataclass(frozen=True)
class _Shape:
    """Everything that pipelines of one number of ranks and of micro-batches share, whatever their schedule."""

    candidate: _Candidate
    num_ranks: int
    num_micro_batches: int
    offered_mib: int
    transient_bytes: int
    parts: Sequence[_Part]

    @classmethod
    def of(cls, candidate: _Candidate, num_ranks: int, num: int, offered_mib: int) -> _Shape | None:
        """None if nothing is known of the micro-batch."""
        micro_batch = candidate.batch // num
        transient = transient_bytes(candidate.profile, micro_batch)
        if transient is None:
            return None
        return cls(candidate, num_ranks, num, offered_mib, transient, candidate.parts(micro_batch))

    @cached_property
    def schedules(self) -> dict[str, PipelineSchedule | None]:
        """The schedules made so far; None for one that does not take this number of micro-batches."""
        return {}

    def schedule(self, name: str) -> PipelineSchedule | None:
        """The schedule of this name, made once."""
        if name not in self.schedules:
            try:
                self.schedules[name] = SCHEDULES[name](self.num_ranks, self.num_micro_batches)
            except ValueError:
                self.schedules[name] = None
        return self.schedules[name]

    def drafts(self) -> Iterator[_Draft]:
        """One with the cut of ranks and one with the best cut for each schedule into which the model can be divided."""
        first, *blocks, last = self.parts
        ends = [first.divided(self.num_ranks), last.divided(self.num_ranks)]
        joined = [first + blocks[0], *blocks[1:-1], blocks[-1] + last]
        has_huge_ends = first.num_params + last.num_params >= sum(block.num_params for block in blocks) / self.num_ranks
        cuts: dict[CutTarget, list[Cut]] = {}
        for name, num_chunks in _CHUNKS.items():
            if len(blocks) < self.num_ranks * num_chunks or (name == "interlaced" and not has_huge_ends):
                continue
            # Stages of a rank that has two hold more micro-batches than in 1F1B: they are cut by time alone.
            like: Literal["gpipe", "1f1b"] = "gpipe" if name == "gpipe" or num_chunks > 1 else "1f1b"
            demand = CutTarget(like, self.num_ranks * num_chunks, self.num_micro_batches)
            if name == "interlaced":
                for cut in self._cuts(blocks, demand):
                    yield self._draft(name, cut, [ends[0], *_joined(blocks, cut), ends[1]])
                continue
            if demand not in cuts:
                cuts[demand] = self._cuts(joined, demand)
            for cut in cuts[demand]:
                yield self._draft(name, cut, _joined(joined, cut))

    def _cuts(self, blocks: Sequence[_Part], demand: CutTarget) -> list[Cut]:
        """The cut of ranks, and the best cut."""
        pieces = [self.candidate.piece(block) for block in blocks]
        largest = self.candidate.margin.largest_peak_bytes(self.offered_mib, self.num_ranks)
        has_chunks = demand.num_stages > self.num_ranks
        best = best_cut(pieces, demand, None if has_chunks else largest - self.transient_bytes)
        return list(dict.fromkeys([even_cut(len(pieces), demand.num_stages), best or smallest_cut(pieces, demand)]))

    def _draft(self, name: str, cut: Cut, stages: Iterable[_Part]) -> _Draft:
        return _Draft(self, name, cut, [self.candidate.cost(part) for part in stages])


@dataclass(frozen=True)
class _Draft:
    """A pipeline that may be worth a simulation."""

    shape: _Shape
    name: str
    cut: Cut
    stages: Sequence[StageCost]

    @property
    def is_trained(self) -> bool:
        """Whether ranks train this pipeline today."""
        return self.name in TRAINED

    @cached_property
    def least(self) -> _Order:
        """The best that the pipeline can be, in the order of pipelines."""
        shape = self.shape
        sizes = (self.name, self.stages, shape.num_ranks, shape.num_micro_batches)
        seconds = least_seconds(*sizes, shape.candidate.message_seconds) * (1 - 1e-9)  # sums differ by rounding
        fits = self._prediction(least_bytes(*sizes)).reserved_mib <= shape.offered_mib
        return _order(fits, seconds, shape.num_ranks, self.is_trained)

    @cached_property
    def option(self) -> Option | None:
        """The option with its simulated step; None if the schedule does not take this number of micro-batches."""
        shape = self.shape
        if (schedule := shape.schedule(self.name)) is None:
            return None
        simulation = simulate_step(schedule, self.stages, shape.candidate.message_seconds)
        trained = self.name if self.name in TRAINED else "1f1b"
        micro_batch = shape.candidate.batch // shape.num_micro_batches
        return Option(
            Plan(micro_batch, shape.num_micro_batches, pp=shape.num_ranks, schedule=trained, cut=self._trained_cut),
            self._prediction(max(simulation.peak_bytes)),
            shape.offered_mib,
            Evidence.UNITS,
            simulation.makespan_seconds,
            communication_share=simulation.communication_share,
            bubble_share=simulation.bubble_share,
            refinement=Refinement("" if self.is_trained else "schedule", Pipeline(schedule, self.cut, simulation)),
        )

    @property
    def _trained_cut(self) -> Cut:
        """The cut of the plan; empty if it is even."""
        return self.cut if self.is_trained and not is_even(self.cut) else ()

    def _prediction(self, held_bytes: int) -> Prediction:
        """The memory of a rank that holds so much, and what a pass needs besides."""
        peak_bytes = held_bytes + self.shape.transient_bytes
        return Prediction(
            peak_bytes, margin_bytes=self.shape.candidate.margin.bytes_for(peak_bytes, self.shape.num_ranks)
        )


def _joined(blocks: Sequence[_Part], cut: Cut) -> Iterator[_Part]:
    start = 0
    for size in cut:
        yield reduce(operator.add, blocks[start : start + size])
        start += size
