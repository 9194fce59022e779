"""The ways to spread one candidate as rows: each with its price by the costs of units, and its options by traces.

Pure. A row is priced when somebody first asks, because a candidate has hundreds of rows and few are reached. The
planner decides in which order they are examined (``planner``).
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from heapq import heapify, heappop, heappush

from estimators.axes import Spread
from estimators.constraints import UNCONSTRAINED, Constraints
from estimators.memory import (
    NO_EXTRA,
    Extra,
    Margin,
    largest_micro_batch,
    predict,
    predict_states,
    with_evaluation_batch,
)
from estimators.model import Layout, Peaks, Plan, Prediction
from placement.model import Cluster
from placement.planning.options import Option, Untraced, divisors, margin_for
from placement.pricing.pricer import Price, Pricer

TOLERANCE = 1.3
"""Ways whose peak by units is at most this many times the memory of a device are traced: that peak is a rough one."""

MOST_SIZES = 3
"""Most numbers of micro-batches that are traced for one pipeline. Each needs a trace of every stage."""


@dataclass(frozen=True, slots=True)
class Request:
    """Everything that the plans of one candidate have in common."""

    profile: Peaks
    batch: int
    cluster: Cluster
    extra: Extra
    constraints: Constraints = UNCONSTRAINED
    margin: Margin = field(init=False)
    states_known: dict[tuple[int, int, int], bool] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ValueError(f"batch must be at least 1, got {self.batch}")
        if not self.cluster.devices:
            raise ValueError("the cluster has no devices: ask again when it has some")
        object.__setattr__(self, "margin", margin_for(self.cluster))

    def states_fit(self, way: Spread, num_ranks: int, offered_mib: int) -> bool:
        """Whether the model states, divided evenly, leave anything of a device; kept for all ways that divide alike."""
        if self.extra is not NO_EXTRA:
            return self.states_alone(way, offered_mib) is None
        key = _num_shards(way), num_ranks, offered_mib
        if key not in self.states_known:
            self.states_known[key] = self.states_alone(way, offered_mib) is None
        return self.states_known[key]

    def states_alone(self, way: Spread, offered_mib: int) -> Option | None:
        """The refusal of a way whose model states alone are too large, divided evenly; None if they are not."""
        extra_bytes = min(map(self.extra.bytes_for, (*_layouts(way), *_layouts(replace(way, recompute=True)))))
        least = predict_states(self.profile, _num_shards(way), way.world_size, extra_bytes, self.margin)
        option = Option(_plan(1, way.pp, way), least, offered_mib, states_alone=True, at_least=True)
        return None if option.fits else option

    def best(self, way: Spread, offered_mib: int) -> Option | Untraced:
        """The option with the largest micro-batch that fits, for a way without a pipeline."""
        share, (whole, parts) = self.batch // _num_shares(way), _layouts(way)
        if whole not in self.profile.curves:
            return Untraced(whole)
        largest = self._largest(whole, offered_mib)
        if share <= largest:
            return self.option(way, share, 1, offered_mib)
        # Accumulation keeps gradients during the next forward pass, so by its trace it never needs less than a single
        # micro-batch of the same size. If not even one sample fits, a trace with accumulation changes the result only
        # where less was learned for it.
        if largest == 0 and (share == 1 or self.extra.bytes_for(parts) >= self.extra.bytes_for(whole)):
            return self.option(way, 1, 1, offered_mib, at_least=share > 1)
        if parts not in self.profile.curves:
            return Untraced(parts)
        largest = self._largest(parts, offered_mib)
        size = next((size for size in divisors(share)[1:] if size <= largest), 1)
        return self.option(way, size, share // size, offered_mib)

    def best_pipeline(self, way: Spread, sizes: Sequence[int], offered_mib: int) -> Option | Untraced:
        """The first of these micro-batches with which all stages fit, else the last one."""
        assert sizes, "a pipeline has at least one size to try"
        for size in sizes:
            plan = _plan(size, self.batch // _num_shares(way) // size, way)
            if missing := [layout for layout in plan.layouts if layout not in self.profile.curves]:
                return Untraced(missing[0])
            option = self.option(way, plan.micro_batch, plan.num_micro_batches, offered_mib)
            if option.fits:
                break
        return option

    def option(
        self, way: Spread, micro_batch: int, num_micro_batches: int, offered_mib: int, *, at_least: bool = False
    ) -> Option:
        """The option with this micro-batch, whose layouts have been traced."""
        plan = _plan(micro_batch, num_micro_batches, way)
        extra_bytes, evaluation = self.extra.bytes_for(plan.layout, micro_batch), self.extra.evaluation
        plan = with_evaluation_batch(self.profile, plan, extra_bytes, evaluation)
        prediction = predict(self.profile, plan, extra_bytes, self.margin, evaluation)
        if self.extra.held_bytes:
            most_bytes = self.margin.largest_peak_bytes(offered_mib, way.world_size)
            spare_bytes = min(self.extra.wanted_bytes(plan.layout), most_bytes) - prediction.peak_bytes
            if spare_bytes > 0:
                prediction = predict(self.profile, plan, extra_bytes + spare_bytes, self.margin, evaluation)
        return Option(plan, prediction, offered_mib, at_least=at_least)

    def _largest(self, layout: Layout, offered_mib: int) -> int:
        return largest_micro_batch(self.profile, layout, offered_mib, self.extra, self.margin)


@dataclass(eq=False)
class Row:
    """A way to spread the candidate, with its price at the best micro-batch by units. Peaks and price are computed when
    they are first needed. Each of the ``num_ranks`` trains on ``share`` samples, and ``sizes`` are all micro-batches of
    these, the largest first. A step takes ``factor`` times as long as priced, by what was learned."""

    request: Request
    pricer: Pricer
    way: Spread
    num_ranks: int
    offered_mib: int
    share: int
    sizes: Sequence[int]
    factor: float

    @classmethod
    def of(
        cls, request: Request, pricer: Pricer, way: Spread, num_ranks: int, offered_mib: int, factor: float
    ) -> Row | None:
        """None if the batch cannot be divided in this way, or the model states alone are too large."""
        share, rest = divmod(request.batch, _num_shares(way))
        if rest or not request.states_fit(way, num_ranks, offered_mib):
            return None
        sizes = _sizes(share, way.pp)
        if way.pp > 1:
            sizes = [size for size in sizes if request.constraints.allow_micro_batches(share // size)]
        return cls(request, pricer, way, num_ranks, offered_mib, share, sizes, factor) if sizes else None

    @cached_property
    def capacity_bytes(self) -> int:
        """Bytes that its peak may have, with what was learned."""
        return self.request.margin.largest_peak_bytes(self.offered_mib, self.num_ranks)

    def _extra_bytes(self, size: int) -> int:
        """Bytes that were learned to be needed beyond the peak."""
        return self.request.extra.bytes_for(_layouts(self.way)[0], size)

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
    def learned_price(self) -> Price:
        """The price with what was learned about its seconds."""
        seconds, waiting = self.factor * self.price.seconds, self.factor * self.price.communication_seconds
        return replace(self.price, seconds=seconds, communication_seconds=waiting)

    @property
    def layouts(self) -> Sequence[Layout]:
        """The layouts that may have to be traced, with the first micro-batch."""
        if self.way.pp == 1:
            return _layouts(self.way)
        return _plan(self.tried[0], self._num(self.tried[0]), self.way).layouts

    def is_among(self, *layouts: Container[Layout]) -> bool:
        """Whether one of the containers has one of its layouts."""
        return any(layout in some for some in layouts for layout in self.layouts)

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
            found = self.request.best_pipeline(self.way, self.tried, self.offered_mib)
        else:
            found = self.request.best(self.way, self.offered_mib)
        return found if isinstance(found, Untraced) else replace(found, price=self.learned_price)

    def by_units(self) -> Option:
        """The option as its units price it, with what was learned."""
        size = self.tried[0]
        peak_bytes = self.price.peak_bytes
        extra_bytes = self._extra_bytes(size)
        margin_bytes = self.request.margin.bytes_for(peak_bytes + extra_bytes, self.num_ranks)
        prediction = Prediction(peak_bytes, extra_bytes=extra_bytes, margin_bytes=margin_bytes)
        plan = _plan(size, self._num(size), self.way)
        return Option(plan, prediction, self.offered_mib, price=self.learned_price, by_units=True)


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


def _num_shares(way: Spread) -> int:
    """Number of ranks that train on different samples."""
    return way.dp_replicate * way.dp_shard


def _num_shards(way: Spread) -> int:
    """Largest number of ranks that any part of the model states may be divided over."""
    return way.dp_shard * way.tp * way.pp * (way.dp_replicate if way.zero1 else 1)


@lru_cache(maxsize=4096)
def _plan(micro_batch: int, num_micro_batches: int, way: Spread) -> Plan:
    """A cached plan: a screening builds the same few hundred tens of thousands of times."""
    return Plan(micro_batch, num_micro_batches, **way.values)


@cache
def _layouts(way: Spread) -> tuple[Layout, Layout]:
    """The layouts without and with accumulation: the same objects that plans have, which a dictionary finds fastest."""
    if way.pp > 1:
        return _plan(1, way.pp, way).layout, _plan(1, way.pp, way).layout
    return _plan(1, 1, way).layout, _plan(1, 2, way).layout
