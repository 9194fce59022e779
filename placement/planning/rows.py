"""The ways to spread one candidate as rows: each with its price by the costs of units, and its option by traces.

Pure. A row is priced when somebody first asks, because a candidate has hundreds of rows and few are reached. The
planner decides in which order they are examined (``planner``).
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from heapq import heapify, heappop, heappush
from typing import Protocol

from estimators.axes import Spread
from estimators.model import Layout, Plan, Prediction
from placement.option import Evidence, Option
from placement.planning.answers import Untraced
from placement.planning.question import Question, divisors
from placement.planning.traced_options import TracedOptions, cached_plan, layouts_of
from placement.pricing.pricer import Price

TOLERANCE = 1.3
"""Ways whose peak by units is at most this many times the memory of a device are traced: that peak is a rough one."""

MOST_SIZES = 3
"""Most numbers of micro-batches that are traced for one pipeline. Each needs a trace of every stage."""


class Prices(Protocol):
    """Prices of a way by units; ``placement.pricing.pricer.Pricer`` has those of every way that is not refined."""

    def peak_bytes(self, way: Spread, micro_batch: int, num_micro_batches: int) -> float:
        """Rough peak of the rank that needs most."""
        ...

    def price(self, way: Spread, micro_batch: int, num_micro_batches: int, peak_bytes: float | None = None) -> Price:
        """Price of a step; ``peak_bytes`` are given if they are known."""
        ...

    def least_seconds(self, way: Spread, num_ranks: int, share: int, sizes: Sequence[int]) -> float:
        """A bound of the price's seconds at the best of these micro-batches."""
        ...


@dataclass(frozen=True, slots=True)
class _KnownPrice:
    """The price of one plan that the exact search has priced already."""

    option: Option

    def peak_bytes(self, way: Spread, micro_batch: int, num_micro_batches: int) -> float:
        return self.option.prediction.peak_bytes

    def price(self, way: Spread, micro_batch: int, num_micro_batches: int, peak_bytes: float | None = None) -> Price:
        seconds = self.option.comparable_seconds
        waiting = seconds * (self.option.communication_share or 0.0)
        return Price(seconds, waiting, self.option.prediction.peak_bytes)

    def least_seconds(self, way: Spread, num_ranks: int, share: int, sizes: Sequence[int]) -> float:
        return self.option.comparable_seconds


@dataclass(eq=False)
class Row:
    """A way to spread the candidate, with its price at the best micro-batch by units. Peaks and price are computed when
    they are first needed. Each of the ``num_ranks`` trains on ``share`` samples, and ``sizes`` are all micro-batches of
    these, the largest first. A step takes ``factor`` times as long as priced, by what was learned."""

    traced: TracedOptions
    pricer: Prices
    way: Spread
    num_ranks: int
    offered_mib: int
    share: int
    sizes: Sequence[int]
    factor: float

    @classmethod
    def of(
        cls, traced: TracedOptions, pricer: Prices, way: Spread, num_ranks: int, offered_mib: int, factor: float
    ) -> Row | None:
        """None if the batch cannot be divided in this way, or the model states alone are too large."""
        share, rest = divmod(traced.question.batch, way.num_shares)
        if rest or not traced.states_fit(way, num_ranks, offered_mib):
            return None
        sizes = _sizes(share, way.pp)
        if way.pp > 1:
            sizes = [size for size in sizes if traced.question.constraints.allow_micro_batches(share // size)]
        return cls(traced, pricer, way, num_ranks, offered_mib, share, sizes, factor) if sizes else None

    @classmethod
    def of_refined(cls, traced: TracedOptions, option: Option, factor: float) -> Row:
        """The row of a plan of the exact search, with its micro-batch and its price."""
        plan, way = option.plan, Spread(**option.plan.values)
        share, sizes = plan.micro_batch * plan.num_micro_batches, [plan.micro_batch]
        return cls(traced, _KnownPrice(option), way, plan.world_size, option.offered_mib, share, sizes, factor)

    @property
    def _question(self) -> Question:
        return self.traced.question

    @cached_property
    def capacity_bytes(self) -> int:
        """Bytes that its peak may have, with what was learned."""
        return self._question.margin.largest_peak_bytes(self.offered_mib, self.num_ranks)

    def _extra_bytes(self, size: int) -> int:
        """Bytes that were learned to be needed beyond the peak."""
        return self._question.extra.bytes_for(layouts_of(self.way)[0], size)

    @cached_property
    def peaks(self) -> Mapping[int, float]:
        """Peaks by units of the micro-batches that fit by them and may be taken, or else of the smallest one.

        Without a pipeline the largest one that fits is always taken.
        """
        fitting: dict[int, float] = {}
        for size in self.sizes:
            peak = self.pricer.peak_bytes(self.way, size, self._num(size))
            if round(peak) + self._extra_bytes(size) <= self.capacity_bytes:
                fitting[size] = peak
                if self.way.pp == 1:
                    break
        return fitting or {size: peak}

    @property
    def is_likely(self) -> bool:
        """Whether a trace may show that it fits: by units it needs at most ``TOLERANCE`` times what a device has."""
        return min(self._need_of(size, peak) for size, peak in self.peaks.items()) <= TOLERANCE

    @property
    def need(self) -> float:
        """Its peak by units with what was learned, as a share of what a device offers."""
        return self._need_of(self._best[0], self.price.peak_bytes)

    @property
    def price(self) -> Price:
        return self._best[1]

    @cached_property
    def tried(self) -> Sequence[int]:
        """Micro-batches to try in a pipeline, the best first."""
        return self.sizes[self.sizes.index(self._best[0]) :][:MOST_SIZES]

    @cached_property
    def _best(self) -> tuple[int, Price]:
        """The fastest micro-batch and its price."""
        prices = {size: self.pricer.price(self.way, size, self._num(size), peak) for size, peak in self.peaks.items()}
        best = min(prices, key=lambda size: prices[size].seconds)
        return best, prices[best]

    def _need_of(self, size: int, peak_bytes: float) -> float:
        return (round(peak_bytes) + self._extra_bytes(size)) / max(1, self.capacity_bytes)

    def _num(self, size: int) -> int:
        """Number of micro-batches of this size."""
        return self.share // size

    @property
    def seconds(self) -> float:
        """Seconds of a step as priced, with what was learned."""
        return self.factor * self.price.seconds

    @property
    def layouts(self) -> Sequence[Layout]:
        """The layouts that may have to be traced, with the first micro-batch."""
        if self.way.pp == 1:
            return layouts_of(self.way)
        return cached_plan(self.tried[0], self._num(self.tried[0]), self.way).layouts

    @property
    def is_refused(self) -> bool:
        """Whether a layout that it needs cannot be traced. Without a pipeline this is the first one alone."""
        needed = self.layouts if self.way.pp > 1 else self.layouts[:1]
        return any(map(self._question.profile.refusal, needed))

    @property
    def is_refused_by_units(self) -> bool:
        """Whether a layout that it needs at the best micro-batch by units cannot be traced."""
        return self.is_refused or any(map(self._question.profile.refusal, self._plan_by_units.layouts))

    def is_among(self, *layouts: Container[Layout]) -> bool:
        """Whether one of the containers has one of its layouts."""
        return any(layout in layouts_of_trace for layouts_of_trace in layouts for layout in self.layouts)

    @property
    def order(self) -> tuple[float, int]:
        """The better, the smaller: predicted device-seconds, then ranks."""
        return self._order(self.price.seconds)

    @cached_property
    def least_order(self) -> tuple[float, int]:
        """A bound: ``order`` without communication, at the best of all micro-batches."""
        return self._order(self.pricer.least_seconds(self.way, self.num_ranks, self.share, self.sizes))

    def _order(self, seconds: float) -> tuple[float, int]:
        device_seconds = float(f"{seconds * self.num_ranks:.4g}")  # predictions are not more exact
        return self.factor * device_seconds, self.num_ranks

    def best(self) -> Option | Untraced:
        """The option with the largest micro-batch that fits, from traces."""
        if self.way.pp > 1:
            pipeline = self.traced.best_pipeline(self.way, self.tried, self.offered_mib)
        else:
            pipeline = self.traced.best(self.way, self.offered_mib)
        return pipeline if isinstance(pipeline, Untraced) else self._priced(pipeline)

    def by_units(self) -> Option:
        """The option as its units price it, with what was learned."""
        size = self.tried[0]
        peak_bytes = self.price.peak_bytes
        extra_bytes = self._extra_bytes(size)
        margin_bytes = self._question.margin.bytes_for(peak_bytes + extra_bytes, self.num_ranks)
        prediction = Prediction(peak_bytes, extra_bytes=extra_bytes, margin_bytes=margin_bytes)
        return self._priced(Option(self._plan_by_units, prediction, self.offered_mib, Evidence.UNITS))

    @property
    def _plan_by_units(self) -> Plan:
        return cached_plan(self.tried[0], self._num(self.tried[0]), self.way)

    def _priced(self, option: Option) -> Option:
        waiting, seconds = self.factor * self.price.communication_seconds, self.seconds
        return replace(option, seconds=seconds, communication_share=waiting / seconds if seconds else 0.0)


def worth_a_trace(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the rows that may fit, the cheapest first; if there are none, the one that comes closest to fitting.

    Rows are priced only when no cheaper bound is left, because most are never reached.
    """
    waiting = [(row.least_order, place, False) for place, row in enumerate(rows)]
    heapify(waiting)
    is_any_likely = False
    while waiting:
        _, place, is_priced = heappop(waiting)
        if is_priced:
            yield rows[place]
        elif rows[place].is_likely:
            is_any_likely = True
            heappush(waiting, (rows[place].order, place, True))
    if not is_any_likely:
        yield from sorted(rows, key=lambda row: row.need)[:1]


@lru_cache(maxsize=4096)
def _sizes(share: int, num_stages: int) -> Sequence[int]:
    """The micro-batches that divide ``share`` samples, the largest first, with at least one for each stage."""
    return [size for size in divisors(share) if share // size >= num_stages]
