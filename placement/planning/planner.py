"""Chooses the plan of one candidate from its profile: how its ranks divide the work, and the largest micro-batch.

Pure: it traces nothing. It examines ways to spread the candidate in order of preference. If it needs the peak curve of
a layout that has not been traced, it returns that layout; the caller traces it and asks again. It does not know what
else runs on the devices: the packer decides when and where the gang starts.

The rule: among all plans that fit, take the one with the fewest predicted *device-seconds* per step, that is ranks ×
seconds. While other candidates wait for devices, this trains the most candidates per hour. So

1. one rank comes first if it fits, in as few micro-batches as possible: n ranks are at most n times faster, and
   communication reduces that;
2. all other ways (``transformation``) are priced from the costs of the units (``pricing``), and examined from the
   cheapest on. The first one that fits by its trace is taken. Those that by their units need far more than a device
   offers are not traced;
3. in each way the micro-batch is the largest that fits: accumulating over smaller ones costs no FLOPs, but smaller
   kernels use the device less well.

Where there are more devices than candidates, each candidate has a *share* of several devices. An idle device is worth
nothing, so then the plan with the shortest step on at most that many devices comes first.

All this holds among the plans that the model's hints allow (``Divisions.constraints``), one rank included.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from heapq import heapify, heappop, heappush
from itertools import chain, takewhile
from types import MappingProxyType

from estimators.axes import Spread
from estimators.constraints import UNCONSTRAINED, Constraints
from estimators.devices.assumed import ASSUMED_CPU
from estimators.devices.kind import DeviceKind
from estimators.learned_seconds import SlowDowns, factor_for
from estimators.memory import (
    NO_EXTRA,
    Extra,
    Margin,
    largest_micro_batch,
    predict,
    predict_states,
)
from estimators.model import Divisions, Layout, Peaks, Plan, Prediction
from estimators.profile import ModelProfile
from placement.model import Cluster
from placement.planning.options import ChosenPlan, NoPlan, Option, Untraced, degrees, divisors, margin_for
from placement.planning.pricing import Price, Pricer
from placement.planning.transformation import list_ways

TOLERANCE = 1.3
"""Ways whose peak by units is at most this many times the memory of a device are traced: that peak is a rough one."""

WORTH = math.log2(1 / 0.9)
"""A wider plan is preferred where each doubling of its ranks shortens the step by a tenth: predictions are not exact,
and more ranks fail more often."""

MOST_SIZES = 3
"""Most numbers of micro-batches that are traced for one pipeline. Each needs a trace of every stage."""

NO_SLOW_DOWNS: SlowDowns = MappingProxyType({})


def choose(
    profile: ModelProfile,
    *,
    batch: int,
    cluster: Cluster,
    extra: Extra = NO_EXTRA,
    kind: DeviceKind | None = None,
    share: int = 1,
    slow_downs: SlowDowns = NO_SLOW_DOWNS,
) -> ChosenPlan | Untraced | NoPlan:
    """Choose the plan for ``batch`` samples per optimizer step.

    ``extra`` bytes per rank, and the margin for these devices, are added to every prediction. ``kind`` gives the speed
    of the devices and of their links, by which plans are ordered; if it is None, that of a CPU is assumed, and
    ``share`` does not count. ``share`` is the number of devices for each candidate. ``slow_downs`` are what the family
    has learned about predicted seconds. Raises ValueError for an empty cluster: a candidate is not infeasible merely
    because the devices are not there yet.
    """
    search = PlanChoice(profile, batch, cluster, extra, kind, share, slow_downs)
    answer = search.ask()
    return replace(answer, options=search.compared(answer)) if isinstance(answer, ChosenPlan) else answer


class PlanChoice:
    """The choice of one candidate's plan; prices are computed when they are first needed, and kept.

    Curves may be added to the profile's mapping between questions. See ``choose`` for the arguments and the errors.
    """

    def __init__(
        self,
        profile: ModelProfile,
        batch: int,
        cluster: Cluster,
        extra: Extra = NO_EXTRA,
        kind: DeviceKind | None = None,
        share: int = 1,
        slow_downs: SlowDowns = NO_SLOW_DOWNS,
    ) -> None:
        self._request = _Request(profile, batch, cluster, extra, profile.divisions.constraints)
        self._profile, self._batch, self._cluster = profile, batch, cluster
        self._kind, self._share, self._slow_downs = kind, share, slow_downs
        self._found: list[_Row] = []

    def ask(self, left_out: Container[Layout] = ()) -> ChosenPlan | Untraced | NoPlan:
        """The answer by the curves that are known, with only those options that were examined for it.

        Ways with a layout in ``left_out`` are not examined; see ``passed_over``.
        """
        if Layout() not in self._profile.curves:
            return Untraced(Layout())
        examined = self._examined(left_out)
        if (first := next(examined, None)) is None:
            return NoPlan(_nothing_allowed(self._request, self._rows, self._profile))
        answer = pick(chain([first], examined), batch=self._batch, cluster=self._cluster)
        hints = f"; {words}" if (words := self._request.constraints.words) else ""
        if isinstance(answer, NoPlan):
            return NoPlan(answer.reason + hints)
        if isinstance(answer, Untraced):
            return answer
        is_wide = any(row.way == Spread(**answer.plan.values) for row in self._wide)
        why = f"; the fastest on at most {self._share} devices, which there are for each candidate" if is_wide else ""
        return replace(answer, reason=answer.reason + why + hints)

    def compared(self, chosen: ChosenPlan) -> tuple[Option, ...]:
        """The options of ``ChosenPlan.options``."""
        return (*_too_large(self._rows, chosen), *chosen.options, *_faster(self._rows, chosen))

    def passed_over(self, answer: ChosenPlan | NoPlan, left_out: Container[Layout]) -> tuple[Option, ...]:
        """The ways with a layout in ``left_out`` that are worth a trace and come before the answer's plan, by units.

        Had they been examined, one of them might be the answer.
        """
        chosen = Spread(**answer.plan.values) if isinstance(answer, ChosenPlan) else None
        before = takewhile(lambda row: row.way != chosen, self._preferred)
        return tuple(row.by_units() for row in before if row.is_among(left_out))

    def _examined(self, left_out: Container[Layout]) -> Iterator[Option | Untraced]:
        """The options in the order of preference: wide ones, one rank, then those that may fit, by device-seconds."""

        def options(rows: Iterable[_Row]) -> Iterator[Option | Untraced]:
            return (row.best() for row in rows if not row.is_among(self._profile.refusals, left_out))

        yield from options(self._first)
        for degree, offered_mib in degrees(self._cluster):
            way = next(iter(self._ways(degree)), None)
            if way is not None and (refused := self._request.states_alone(way, offered_mib)) is not None:
                yield refused
        yield from options(self._others)

    @property
    def _preferred(self) -> Iterator[_Row]:
        """The rows that are worth a trace, in the order of preference; those on several ranks are priced last."""
        yield from self._first
        yield from self._others

    @property
    def _first(self) -> list[_Row]:
        wide, plain = self._wide, self._plain
        return [*wide, plain] if plain is not None and Spread() not in {row.way for row in wide} else wide

    @property
    def _others(self) -> Iterator[_Row]:
        """All other rows that are worth a trace, each found when it is first needed."""
        yield from self._found
        for row in self._more:
            self._found.append(row)
            yield row

    @cached_property
    def _more(self) -> Iterator[_Row]:
        first = {Spread(), *(row.way for row in self._wide)}
        return _worth_a_trace([row for row in self._rows if row.way not in first])

    @cached_property
    def _wide(self) -> list[_Row]:
        return _fastest(self._rows, self._kind, self._share) if self._kind is not None and self._share > 1 else []

    @cached_property
    def _pricer(self) -> Pricer:
        return Pricer(self._profile, self._kind or ASSUMED_CPU)

    @cached_property
    def _plain(self) -> _Row | None:
        """The way of a single rank; None if hints exclude it."""
        if not self._request.constraints.allow(Spread()):
            return None
        return self._row(Spread(), 1, dict(degrees(self._cluster))[1])

    @cached_property
    def _rows(self) -> list[_Row]:
        """Every way that the batch and the model states allow, with its price."""
        ways = ((way, degree, mib) for degree, mib in degrees(self._cluster) for way in self._ways(degree))
        return [row for each in ways if (row := self._row(*each)) is not None]

    def _ways(self, degree: int) -> Sequence[Spread]:
        return _ways(self._profile.divisions, degree)

    def _row(self, way: Spread, num_ranks: int, offered_mib: int) -> _Row | None:
        factor = factor_for(way, self._slow_downs)
        return _Row.of(self._request, self._pricer, way, num_ranks, offered_mib, factor)


def pick(options: Iterable[Option | Untraced], *, batch: int, cluster: Cluster) -> ChosenPlan | Untraced | NoPlan:
    """Pick the first option that fits; ``options`` are in the order of preference.

    An ``Untraced`` that comes before it is returned instead.
    """
    refused: list[Option] = []
    for option in options:
        if isinstance(option, Untraced):
            return option
        if option.fits:
            # The last refused option says the most: it is the next better one.
            why = f" ({refused[-1]})" if refused else ""
            return ChosenPlan(option.plan, option.prediction, f"{option}{why}", (*refused, option))
        refused.append(option)
    return _nothing_fits(refused, batch, cluster)


def list_options(
    profile: Peaks,
    *,
    batch: int,
    cluster: Cluster,
    extra: Extra = NO_EXTRA,
    constraints: Constraints = UNCONSTRAINED,
) -> list[Option | Untraced]:
    """One rank and FSDP at every degree, each with and without recompute, whether or not they fit.

    Only those that the ``constraints`` allow are listed. The first one is the option that ``choose`` examines first, if
    they allow one rank. Raises the same errors.
    """
    return list(_plain_options(_Request(profile, batch, cluster, extra, constraints)))


@dataclass(frozen=True, slots=True)
class _Request:
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
        prediction = predict(self.profile, plan, self.extra.bytes_for(plan.layout), self.margin)
        return Option(plan, prediction, offered_mib, at_least=at_least)

    def _largest(self, layout: Layout, offered_mib: int) -> int:
        return largest_micro_batch(self.profile, layout, offered_mib, self.extra.bytes_for(layout), self.margin)


def _plain_options(request: _Request) -> Iterator[Option | Untraced]:
    for degree, offered_mib in degrees(request.cluster):
        if request.batch % degree:
            return
        way = Spread(dp_shard=degree)
        if not request.constraints.allow(way):
            continue
        if (refused := request.states_alone(way, offered_mib)) is not None:
            yield refused
            continue
        for recompute in (False, True):
            yield request.best(replace(way, recompute=recompute), offered_mib)


def _fastest(rows: Sequence[_Row], kind: DeviceKind, share: int) -> list[_Row]:
    """The ways on at most ``share`` devices that by their units fit, the fastest first.

    What was learned does not count: it contains the load of hosts that were busy, which one rank felt more than a gang
    that filled its host, and here devices are idle.
    """

    def seconds(row: _Row) -> float:
        return row.price.seconds * kind.sharing(row.num_ranks) * math.pow(row.num_ranks, WORTH)

    return sorted((row for row in rows if row.num_ranks <= share and row.need <= 1), key=seconds)


def _too_large(rows: Sequence[_Row], chosen: ChosenPlan) -> Iterator[Option]:
    """For each number of ranks, the cheapest option that was left out because by its units it is far too large."""
    device_seconds = chosen.options[-1].device_seconds or 0.0
    seen: set[int] = set()
    for row in sorted(rows, key=lambda row: row.order):
        num_ranks = row.num_ranks
        is_cheaper = row.learned_price.seconds * num_ranks < device_seconds
        if row.need > TOLERANCE and is_cheaper and num_ranks > 1 and num_ranks not in seen:
            seen.add(num_ranks)
            yield row.by_units()


def _faster(rows: Sequence[_Row], chosen: ChosenPlan) -> Iterator[Option]:
    """Options that by their units fit on more ranks and take less time, each less than the one before it."""
    price = chosen.options[-1].price
    least = price.seconds if price else math.inf
    wider = (row for row in rows if row.num_ranks > chosen.plan.world_size and row.need <= 1)
    for row in sorted(wider, key=lambda row: (row.num_ranks, row.learned_price.seconds)):
        if row.learned_price.seconds < least:
            least = row.learned_price.seconds
            yield row.by_units()


@dataclass(eq=False)
class _Row:
    """A way to spread the candidate, with its price at the best micro-batch by units. Peaks and price are computed when
    they are first needed. Each of the ``num_ranks`` trains on ``share`` samples, and ``sizes`` are all micro-batches of
    these, the largest first. A step takes ``factor`` times as long as priced, by what was learned."""

    request: _Request
    pricer: Pricer
    way: Spread
    num_ranks: int
    offered_mib: int
    share: int
    sizes: Sequence[int]
    factor: float

    @classmethod
    def of(
        cls, request: _Request, pricer: Pricer, way: Spread, num_ranks: int, offered_mib: int, factor: float
    ) -> _Row | None:
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
        """Bytes that its peak may have."""
        capacity_bytes = self.request.margin.largest_peak_bytes(self.offered_mib, self.num_ranks)
        return capacity_bytes - self.request.extra.bytes_for(_layouts(self.way)[0])

    @cached_property
    def peaks(self) -> Mapping[int, float]:
        """Peaks by units of the micro-batches that may be the fastest of those that fit by them, or else of the
        smallest one.

        Without a pipeline the largest one is the fastest: fewer of them take less time, whatever each costs.
        """
        fitting: dict[int, float] = {}
        for size in self.sizes:
            peak = self.pricer.peak_bytes(self.way, size, self._num(size))
            if round(peak) <= self.capacity_bytes:
                fitting[size] = peak
                if self.way.pp == 1:
                    break
        return fitting or {size: peak}

    @property
    def is_likely(self) -> bool:
        """Whether it may fit: a peak by units is a rough one."""
        return self._need_of(min(self.peaks.values())) <= TOLERANCE

    @property
    def need(self) -> float:
        """Its peak by units, as a share of what a device offers."""
        return self._need_of(self.price.peak_bytes)

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

    def _need_of(self, peak_bytes: float) -> float:
        return round(peak_bytes) / max(1, self.capacity_bytes)

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
        """The option as its units price it."""
        size = self.tried[0]
        peak_bytes = self.price.peak_bytes
        margin_bytes = self.request.margin.bytes_for(peak_bytes, self.num_ranks)
        prediction = Prediction(peak_bytes, margin_bytes=margin_bytes)
        plan = _plan(size, self._num(size), self.way)
        return Option(plan, prediction, self.offered_mib, price=self.learned_price, by_units=True)


def _worth_a_trace(rows: Sequence[_Row]) -> Iterator[_Row]:
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


@lru_cache(maxsize=1024)
def _ways(divisions: Divisions, degree: int) -> tuple[Spread, ...]:
    """All ways, cached: the candidates of a screening have few different divisions."""
    return tuple(list_ways(divisions, degree))


@cache
def _layouts(way: Spread) -> tuple[Layout, Layout]:
    """The layouts without and with accumulation: the same objects that plans have, which a dictionary finds fastest."""
    if way.pp > 1:
        return _plan(1, way.pp, way).layout, _plan(1, way.pp, way).layout
    return _plan(1, 1, way).layout, _plan(1, 2, way).layout


def _nothing_allowed(request: _Request, rows: Sequence[_Row], profile: ModelProfile) -> str:
    """Why there is no way to examine, whatever its memory; one rank always is one, unless hints exclude it."""
    constraints, num_devices = request.constraints, len(request.cluster.devices)
    assert constraints.limits
    if (least := constraints.least_ranks) > num_devices:
        return f"{constraints.words}: this takes {least} devices, and there are {num_devices}"
    refused = (why for row in rows for layout, why in profile.refusals.items() if layout in row.layouts)
    if (why := next(refused, None)) is not None:
        return f"{constraints.words}: this cannot be traced: {why}"
    multiple = constraints.least("shares") * constraints.least("micro_batches")
    wanted = f"a multiple of {multiple}" if request.batch % multiple else "larger"
    return f"{constraints.words}: for this the batch must be {wanted}, it is {request.batch}"


def _nothing_fits(refused: list[Option], batch: int, cluster: Cluster) -> NoPlan:
    best = min(refused, key=lambda option: (option.states_alone, option.prediction.reserved_mib - option.offered_mib))
    reason = f"needs {best.about}{best.prediction.reserved_mib} MiB per device on its best plan ({best.words})"
    reason += f"{best.learned}; the devices offer {best.offered_mib} MiB"
    wider = 2 * max(option.plan.world_size for option in refused)
    if wider <= len(cluster.devices) and batch % wider:
        reason += f" (no wider plan: {wider} ranks do not divide the batch of {batch})"
    return NoPlan(reason)
