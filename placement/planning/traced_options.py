"""The options of one question by the traces of its candidate, and the few that an estimate lists.

Pure. Where a layout has not been traced, the answer is the layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache

from estimators.axes import Spread
from estimators.memory import NO_EXTRA, largest_micro_batch, predict, predict_states, with_evaluation_batch
from estimators.model import Layout, Plan, Prediction
from placement.option import Evidence, Option
from placement.planning.answers import Untraced
from placement.planning.question import Question, degrees, divisors


class TracedOptions:
    """The options of one question. States that fit are remembered, because many ways divide them equally."""

    def __init__(self, question: Question) -> None:
        self.question, self._profile, self._batch = question, question.profile, question.batch
        self._extra, self._margin = question.extra, question.margin
        self._states_known: dict[tuple[int, int, int], bool] = {}

    def states_fit(self, way: Spread, num_ranks: int, offered_mib: int) -> bool:
        """Whether evenly divided model states leave anything of a device; kept for ways that divide them equally."""
        if self._extra is not NO_EXTRA:
            return self.states_alone(way, offered_mib) is None
        key = way.most_shards, num_ranks, offered_mib
        if key not in self._states_known:
            self._states_known[key] = self.states_alone(way, offered_mib) is None
        return self._states_known[key]

    def states_alone(self, way: Spread, offered_mib: int) -> Option | None:
        """The refusal of a way whose model states alone are too large, divided evenly; None if they are not."""
        extra_bytes = min(map(self._extra.bytes_for, (*layouts_of(way), *layouts_of(replace(way, recompute=True)))))
        # Nothing is divided over more ranks, so this is a lower bound.
        least = predict_states(self._profile, way.most_shards, way.world_size, extra_bytes, self._margin)
        option = Option(cached_plan(1, way.pp, way), least, offered_mib, Evidence.STATES)
        return None if option.fits else option

    def best(self, way: Spread, offered_mib: int) -> Option | Untraced:
        """The option with the largest micro-batch that fits, for a way without a pipeline."""
        share, (first_layout, parts) = self._batch // way.num_shares, layouts_of(way)
        if first_layout not in self._profile.curves:
            return Untraced(first_layout)
        largest = self._largest(first_layout, offered_mib)
        if share <= largest:
            return self.option(way, share, 1, offered_mib)
        # Accumulation keeps gradients during the next forward pass, so by its trace it never needs less than a single
        # micro-batch of the same size. If not even one sample fits, a trace with accumulation changes the result only
        # where less was learned for it.
        if largest == 0 and (share == 1 or self._extra.bytes_for(parts) >= self._extra.bytes_for(first_layout)):
            return self.option(way, 1, 1, offered_mib, evidence=Evidence.AT_LEAST if share > 1 else Evidence.TRACED)
        if self._profile.refusal(parts):
            return self.option(way, share, 1, offered_mib)
        if parts not in self._profile.curves:
            return Untraced(parts)
        largest = self._largest(parts, offered_mib)
        size = next((size for size in divisors(share)[1:] if size <= largest), 1)
        return self.option(way, size, share // size, offered_mib)

    def best_pipeline(self, way: Spread, sizes: Sequence[int], offered_mib: int) -> Option | Untraced:
        """The first of these micro-batches with which all stages fit, else the last one."""
        assert sizes, "a pipeline has at least one size to try"
        for size in sizes:
            plan = cached_plan(size, self._batch // way.num_shares // size, way)
            if missing := [layout for layout in plan.layouts if layout not in self._profile.curves]:
                return Untraced(missing[0])
            option = self.option(way, plan.micro_batch, plan.num_micro_batches, offered_mib)
            if option.fits:
                break
        return option

    def option(
        self,
        way: Spread,
        micro_batch: int,
        num_micro_batches: int,
        offered_mib: int,
        *,
        evidence: Evidence = Evidence.TRACED,
        shares: tuple[int, ...] = (),
    ) -> Option:
        """The option with this micro-batch, or these shares of it, whose layouts have been traced."""
        plan = cached_plan(micro_batch, num_micro_batches, way)
        plan = replace(plan, shares=shares) if shares else plan
        if not self._profile.traits.evaluates_whole:
            extra_bytes = self._extra.bytes_for(plan.layout, micro_batch)
            plan = with_evaluation_batch(self._profile, plan, extra_bytes, self._extra.evaluation)
        return Option(plan, self._predicted(plan, offered_mib), offered_mib, evidence)

    def _predicted(self, plan: Plan, offered_mib: int) -> Prediction:
        """The memory of a plan whose layouts have been traced, and what is held beyond it where there is room."""
        extra_bytes, evaluation = self._extra.bytes_for(plan.layout, plan.micro_batch), self._extra.evaluation
        prediction = predict(self._profile, plan, extra_bytes, self._margin, evaluation)
        if self._extra.held_bytes:
            most_bytes = self._margin.largest_peak_bytes(offered_mib, plan.world_size)
            spare_bytes = min(self._extra.wanted_bytes(plan.layout), most_bytes) - prediction.peak_bytes
            if spare_bytes > 0:
                prediction = predict(self._profile, plan, extra_bytes + spare_bytes, self._margin, evaluation)
        return prediction

    def option_of(self, plan: Plan, capacities_mib: Sequence[int]) -> Option:
        """The option of this plan, whose layouts have been traced; of devices with these MiB, the largest first.

        If ranks take unlike shares and do not all fit, its memory is that of the rank that lacks most.
        """
        way, num = Spread(**plan.values), plan.num_micro_batches
        if not plan.shares:
            return self.option(way, plan.micro_batch, num, capacities_mib[plan.world_size - 1])
        option = self.option(way, plan.micro_batch, num, capacities_mib[0], shares=plan.shares)
        if self._extra.held_bytes:
            option = self._held_on(option, capacities_mib)
        mibs, shares = option.plan.rank_mibs(option.prediction), map(plan.data_rank, range(plan.world_size))
        ranks = sorted(zip(mibs, shares, strict=True), reverse=True)
        pairs = [(*rank, mib) for rank, mib in zip(ranks, capacities_mib, strict=False)]
        needed_mib, share, offered_mib = max(pairs, key=lambda pair: pair[0] - pair[2])
        if needed_mib <= offered_mib:
            return option
        return replace(option, prediction=self._predicted(plan.of_share(share), offered_mib), offered_mib=offered_mib)

    def _held_on(self, option: Option, capacities_mib: Sequence[int]) -> Option:
        """The option with what is held beyond the need, on each rank at most as much as its device has room for."""
        plan, prediction = option.plan, option.prediction
        bare = predict(
            self._profile,
            plan,
            self._extra.bytes_for(plan.layout, plan.micro_batch),
            self._margin,
            self._extra.evaluation,
        )
        shares_mib = list(prediction.shares_mib)
        ranks = sorted(range(plan.world_size), key=lambda rank: -shares_mib[plan.data_rank(rank)])
        for rank, mib in zip(ranks, capacities_mib, strict=False):
            share = plan.data_rank(rank)
            shares_mib[share] = max(bare.shares_mib[share], min(shares_mib[share], mib))
        return replace(option, prediction=replace(prediction, shares_mib=tuple(shares_mib)))

    def _largest(self, layout: Layout, offered_mib: int) -> int:
        return largest_micro_batch(self._profile, layout, offered_mib, self._extra, self._margin)


def list_options(question: Question) -> list[Option | Untraced]:
    """One rank and FSDP at every degree, each with and without recompute, whether or not they fit.

    Only those that the model's hints allow are listed. The first one is the option that ``choose`` examines first, if
    they allow one rank.
    """
    return list(_iterate_options(question))


def _iterate_options(question: Question) -> Iterator[Option | Untraced]:
    options = TracedOptions(question)
    for degree, offered_mib in degrees(question.cluster):
        if question.batch % degree:
            continue
        way = Spread(dp_shard=degree)
        if not question.constraints.allow(way):
            continue
        if (refused := options.states_alone(way, offered_mib)) is not None:
            yield refused
            continue
        for recompute in (False, True):
            yield options.best(replace(way, recompute=recompute), offered_mib)


@lru_cache(maxsize=4096)
def cached_plan(micro_batch: int, num_micro_batches: int, way: Spread) -> Plan:
    """A cached plan: a screening builds the same few hundred tens of thousands of times."""
    return Plan(micro_batch, num_micro_batches, **way.values)


@cache
def layouts_of(way: Spread) -> tuple[Layout, Layout]:
    """The layouts without and with accumulation: the same objects that plans have, which a dictionary finds fastest."""
    if way.pp > 1:
        return cached_plan(1, way.num_stages, way).layout, cached_plan(1, way.num_stages, way).layout
    return cached_plan(1, 1, way).layout, cached_plan(1, 2, way).layout
