"""Chooses the plan of one candidate from its profile: how its ranks divide the work, and the largest micro-batch.

Pure: it traces nothing. It examines ways to spread the candidate in order of preference. If it needs the peak curve of
a layout that has not been traced, it returns that layout; the caller traces it and asks again. It does not know what
else runs on the devices: the packer decides when and where the gang starts.

The rule: among all plans that fit, take the one with the fewest predicted *device-seconds* per step, that is ranks ×
seconds. While other candidates wait for devices, this trains the most candidates per hour. So

1. one rank comes first if it fits, in as few micro-batches as possible: n ranks are at most n times faster, and
   communication reduces that;
2. all other ways (``ways``) are priced from the costs of the units (``pricer``), and examined from the
   cheapest on. The first one that fits by its trace is taken. Those that by their units need far more than a device
   offers are not traced;
3. in each way the micro-batch is the largest that fits: accumulating over smaller ones costs no FLOPs, but smaller
   kernels use the device less well.

Where devices would be idle, a candidate may use more of them: the packer chooses among this plan and *wider* options.
Each of these is the fastest on its number of ranks, and enough faster than the one before.

All this holds among the plans that the model's hints allow (``Divisions.constraints``), one rank included.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from heapq import heapify, heappop, heappush
from itertools import chain, islice, takewhile

from estimators.axes import Spread
from estimators.devices.assumed import ASSUMED_CPU
from estimators.learned_seconds import factor_for
from estimators.model import Divisions, Layout, Plan
from placement.model import plural
from placement.option import NoPlan, Option
from placement.planning.answers import Answer, ChosenPlan, Untraced
from placement.planning.question import Question, degrees
from placement.planning.refusals import causes, not_divided, nothing_allowed, nothing_fits
from placement.planning.rows import TOLERANCE, Row, worth_a_trace
from placement.planning.step_seconds import predicted_step
from placement.planning.traced_options import TracedOptions, layouts_of
from placement.planning.ways import list_ways
from placement.pricing.pricer import Pricer

WORTH = math.log2(1 / 0.9)
"""A wider plan is preferred where each doubling of its ranks shortens the step by a tenth: predictions are not exact,
and more ranks fail more often."""

MOST_TRIED = 3
"""Most ways that are traced for one wider option: by their units all of them fit."""

CLEARLY_SLOWER = 1.1
"""How many times the price of the next way the best one must take by its trace, before that way is traced as well."""


def choose(question: Question) -> Answer:
    """Choose the plan of a candidate, with the plans that it was compared with."""
    search = PlanChoice(question)
    answer = search.ask()
    if question.plan is not None or not isinstance(answer, ChosenPlan):
        return answer
    wider = search.wider(answer)
    if isinstance(wider, Untraced):
        return wider
    reason = answer.reason + not_divided(question)
    return replace(answer, reason=reason, options=search.compared(answer), wider=wider)


class PlanChoice:
    """The choice of one candidate's plan; prices are computed when they are first needed, and kept.

    It may be asked again: curves and refusals may be added to the mappings of the profile between calls of ``ask``.
    """

    def __init__(self, question: Question) -> None:
        self._question, self._profile, self._cluster = question, question.profile, question.cluster
        self._kind = question.kind
        self._traced = TracedOptions(question)
        self._found: list[Row] = []

    def ask(self, left_out: Container[Layout] = ()) -> Answer:
        """The answer by the curves that are known, with only those options that were examined for it.

        Ways with a layout in ``left_out`` are not examined; see ``passed_over``.
        """
        if Layout() not in self._profile.curves:
            return Untraced(Layout())
        if self._question.plan is not None:
            return self._check_given_plan(self._question.plan)
        examined = self._examined(left_out)
        if (first := next(examined, None)) is None:
            return NoPlan(nothing_allowed(self._question, self._rows))
        answer = pick(chain([first], examined), self._question)
        hints = f"; {words}" if (words := self._question.constraints.words) else ""
        if isinstance(answer, NoPlan):
            listed = (layout for row in self._rows for layout in layouts_of(row.way))
            return NoPlan(answer.reason + hints + causes(self._profile, listed))
        if isinstance(answer, Untraced):
            return answer
        return replace(answer, reason=answer.reason + hints)

    def _check_given_plan(self, plan: Plan) -> Answer:
        """The plan that the study gives, if it fits."""
        words = f"the plan that the study gives ({plan})"
        if plan.batch != self._question.batch:
            return NoPlan(
                f"{words} trains {plan.batch} samples in a step, and the candidate's batch has {self._question.batch}"
            )
        capacities = sorted((device.capacity_mib for device in self._cluster.devices), reverse=True)
        if len(capacities) < plan.world_size:
            return NoPlan(f"{words} needs {plural(plan.world_size, 'device')}, and there are {len(capacities)}")
        for layout in plan.traced_layouts:
            if why := self._profile.refusal(layout):
                return NoPlan(f"{words} cannot be trained: {why}")
            if layout not in self._profile.curves:
                return Untraced(layout)
        answer = pick([self._traced.option_of(plan, capacities)], self._question)
        if not isinstance(answer, ChosenPlan):
            return answer
        return replace(answer, reason=f"{answer.reason}; the study gives this plan")

    def compared(self, chosen: ChosenPlan) -> tuple[Option, ...]:
        """The options of ``ChosenPlan.options``. Seconds are None if the speed of the devices is not known."""
        options = (*_too_large(self._rows, chosen), *chosen.options, *_faster(self._rows, chosen))
        chosen_seconds = next((option.device_seconds for option in options if option.plan == chosen.plan), None)
        return tuple(self._relative(option, chosen_seconds) for option in options)

    def _relative(self, option: Option, chosen_seconds: float | None) -> Option:
        device_seconds = option.device_seconds
        relative = device_seconds / chosen_seconds if device_seconds and chosen_seconds else None
        return replace(option, seconds=option.seconds if self._kind else None, relative_device_seconds=relative)

    def wider(self, chosen: ChosenPlan) -> tuple[Option, ...] | Untraced:
        """The options of ``ChosenPlan.wider``, or a layout to trace first; empty if the speed of devices is not known.

        What was learned does not count: it contains the load of hosts that were busy, which one rank felt more than a
        gang that filled its host, and here devices are idle.
        """
        if self._kind is None or self._question.widest == 1:
            return ()
        options: list[Option] = []
        least = self._worth(next(row for row in self._rows if row.way == Spread(**chosen.plan.values)))
        for num_ranks, _ in degrees(self._cluster):
            if not chosen.plan.world_size < num_ranks <= self._question.widest:
                continue
            best = self._fastest_traced(self._better(num_ranks, least))
            if isinstance(best, Untraced):
                return best
            if best is not None:
                row, option = best
                options.append(option)
                least = self._worth(row)
        return tuple(options)

    def fastest_on(self, num_ranks: int) -> Option | Untraced | None:
        """The option with the fewest seconds on exactly this many ranks; None if none of the ``MOST_TRIED`` fits.

        Asked with the curves that are known: the layout to trace first may be returned instead. The speed of the
        devices must be known.
        """
        best = self._fastest_traced(self._fastest(num_ranks))
        return best[1] if isinstance(best, tuple) else best

    def _fastest_traced(self, rows: Iterable[Row]) -> tuple[Row, Option] | Untraced | None:
        """The row and option with the fewest seconds by its trace, of at most ``MOST_TRIED`` rows.

        The rows come in the order of their prices by units, which are rougher. So the next one is traced too if the
        best so far takes more than ``CLEARLY_SLOWER`` times its price.
        """
        best: tuple[Row, Option] | None = None
        least = math.inf
        for row in islice(rows, MOST_TRIED):
            if least <= CLEARLY_SLOWER * row.seconds:
                break
            option = row.best()
            if isinstance(option, Untraced):
                return option
            if not option.fits:
                continue
            step = predicted_step(self._profile, option.plan, self._kind)
            seconds = step.seconds * row.factor if step else row.seconds
            if seconds < least:
                best, least = (row, option), seconds
        return best

    def _fastest(self, num_ranks: int) -> Iterator[Row]:
        """The rows on this many ranks that can be traced, and fit by their units, the fastest first.

        A row is priced only when its lower bound is the least of all that wait, because most rows never get so far.
        """
        rows = [row for row in self._rows if row.num_ranks == num_ranks and not row.is_refused]
        waiting = [(row.least_order[0] / num_ranks, place, False) for place, row in enumerate(rows)]
        heapify(waiting)
        while waiting:
            _, place, is_priced = heappop(waiting)
            if not is_priced:
                heappush(waiting, (rows[place].seconds, place, True))
            elif rows[place].need <= 1:
                yield rows[place]

    def _better(self, num_ranks: int, worth: float) -> Iterator[Row]:
        return takewhile(lambda row: self._worth(row) < worth, self._fastest(num_ranks))

    def _worth(self, row: Row) -> float:
        """Seconds of a step, more for each doubling of the ranks: a wider option must be less than a narrower one."""
        assert self._kind is not None
        return row.price.seconds * self._kind.sharing(row.num_ranks) * math.pow(row.num_ranks, WORTH)

    def passed_over(self, answer: ChosenPlan | NoPlan, left_out: Container[Layout]) -> tuple[Option, ...]:
        """The ways with a layout in ``left_out`` that are worth a trace and come before the answer's plan, by units.

        Had they been examined, one of them might be the answer.
        """
        chosen = Spread(**answer.plan.values) if isinstance(answer, ChosenPlan) else None
        before = takewhile(lambda row: row.way != chosen, self._preferred)
        return tuple(row.by_units() for row in before if row.is_among(left_out))

    def _examined(self, left_out: Container[Layout]) -> Iterator[Option | Untraced]:
        """The options in the order of preference: one rank, then those that may fit, by device-seconds."""

        def options(rows: Iterable[Row]) -> Iterator[Option | Untraced]:
            return (row.best() for row in rows if not (row.is_refused or row.is_among(left_out)))

        yield from options(self._first)
        for degree, offered_mib in degrees(self._cluster):
            way = next(iter(self._ways(degree)), None)
            if way is not None and (refused := self._traced.states_alone(way, offered_mib)) is not None:
                yield refused
        yield from options(self._other_rows)
        yield from self._unexamined(left_out)

    def _unexamined(self, left_out: Container[Layout]) -> Iterator[Option | Untraced]:
        """The ways of ``list_options`` that have not been examined: their traces may show that they fit after all.

        They are examined where nothing else fits, so that no refusal contradicts the table of an estimate.
        """
        spreads = {Spread(), *(row.way for row in self._found)}
        rows = [row for row in self._rows if row.way not in spreads and row.way == _listed_way(row.way)]
        for row in sorted(rows, key=lambda row: row.order):
            if not (row.is_refused or row.is_among(left_out)):
                yield row.best()

    @property
    def _preferred(self) -> Iterator[Row]:
        """The rows that are worth a trace, in the order of preference; those on several ranks are priced last."""
        yield from self._first
        yield from self._other_rows

    @property
    def _first(self) -> list[Row]:
        return [] if self._plain is None else [self._plain]

    @property
    def _other_rows(self) -> Iterator[Row]:
        """All other rows that are worth a trace, each found when it is first needed."""
        yield from self._found
        for row in self._remaining_rows:
            self._found.append(row)
            yield row

    @cached_property
    def _remaining_rows(self) -> Iterator[Row]:
        return worth_a_trace([row for row in self._rows if row.way != Spread() and not row.is_refused])

    @cached_property
    def _pricer(self) -> Pricer:
        return Pricer(self._profile, self._kind or ASSUMED_CPU)

    @cached_property
    def _plain(self) -> Row | None:
        """The way of a single rank; None if hints exclude it."""
        if not self._question.constraints.allow(Spread()):
            return None
        return self._row(Spread(), 1, dict(degrees(self._cluster))[1])

    @cached_property
    def _rows(self) -> list[Row]:
        """Every way that the batch and the model states allow, with its price, and the refined plans."""
        ways = ((way, degree, mib) for degree, mib in degrees(self._cluster) for way in self._ways(degree))
        rows = [row for arguments in ways if (row := self._row(*arguments)) is not None]
        listed = {row.way for row in rows}
        refined = (Row.of_refined(self._traced, option, self._factor(option.plan)) for option in self._question.refined)
        return [*rows, *(row for row in refined if row.way not in listed)]

    def _ways(self, degree: int) -> Sequence[Spread]:
        return _ways(self._profile.divisions, degree)

    def _row(self, way: Spread, num_ranks: int, offered_mib: int) -> Row | None:
        return Row.of(self._traced, self._pricer, way, num_ranks, offered_mib, self._factor(way))

    def _factor(self, way: Spread) -> float:
        """How many times as long as predicted a step takes, by what was learned."""
        slow_downs = self._question.slow_downs
        return factor_for(way, slow_downs) if slow_downs else 1.0


def pick(options: Iterable[Option | Untraced], question: Question) -> Answer:
    """Pick the first option that fits; ``options`` for the ``question`` are in the order of preference.

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
    return nothing_fits(refused, question)


def _too_large(rows: Sequence[Row], chosen: ChosenPlan) -> Iterator[Option]:
    """The cheapest option that was left out for each number of ranks: by its units it is far too large."""
    device_seconds = chosen.options[-1].device_seconds or 0.0
    seen: set[int] = set()
    for row in sorted((row for row in rows if not row.is_refused_by_units), key=lambda row: row.order):
        num_ranks = row.num_ranks
        is_cheaper = row.seconds * num_ranks < device_seconds
        if row.need > TOLERANCE and is_cheaper and num_ranks > 1 and num_ranks not in seen:
            seen.add(num_ranks)
            yield row.by_units()


def _faster(rows: Sequence[Row], chosen: ChosenPlan) -> Iterator[Option]:
    """Options that by their units fit on more ranks and take less time, each less than the one before it."""
    seconds = chosen.options[-1].seconds
    least = math.inf if seconds is None else seconds
    more_ranks = (row for row in rows if row.num_ranks > chosen.plan.world_size and not row.is_refused_by_units)
    wider = (row for row in more_ranks if row.need <= 1)
    for row in sorted(wider, key=lambda row: (row.num_ranks, row.seconds)):
        if row.seconds < least:
            least = row.seconds
            yield row.by_units()


@lru_cache(maxsize=1024)
def _ways(divisions: Divisions, degree: int) -> tuple[Spread, ...]:
    """All ways, cached: the candidates of a screening have few different divisions."""
    return tuple(list_ways(divisions, degree))


def _listed_way(way: Spread) -> Spread:
    return Spread(dp_shard=way.dp_shard, recompute=way.recompute)
