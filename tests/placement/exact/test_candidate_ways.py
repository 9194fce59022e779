"""Costs of ways agree with the planner's, and only degrees that the model and its hints allow are searched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from estimators.constraints import Limit, PlanConstraints
from estimators.devices.catalogue import gpu
from estimators.devices.kind import FLOP_COUNTER, DeviceKind
from estimators.model import Divisions, Layout
from estimators.peaks.envelope import Line
from estimators.peaks.units import PassWork, Unit
from estimators.profile import ModelProfile
from estimators.work import StepWork, Work, WorkCounter
from placement.exact.candidate_ways import MOST_SIZES, CandidateWays, StageUnits
from placement.exact.search import search
from placement.exact.ways import Devices, Way
from placement.pricing.pricer import Pricer
from placement.pricing.unit_costs import ModelCosts
from tests.placement.planning.test_planner import line

V100 = gpu("V100-32")
MIB = 2**20


def work(gflops: float, gigabytes: float = 0.0) -> Work:
    counter = WorkCounter()
    counter.add("matmul", gflops * 1e9)
    counter.add("copy", 0.0, gigabytes * 1e9)
    return counter.work


def block(count: int, num_params: int = 4 * MIB) -> Unit:
    """For each sample 40 MiB of activations and 1 MiB of output; selective recompute repeats what moves bytes."""
    passes = PassWork(work(0.1), work(30.0, 1.0)), PassWork(work(0.2), work(60.0, 2.0))
    return Unit("blocks", num_params, 1, *passes, Line(40 * MIB, 0), Line(MIB, 0), count)


def gpt(num_blocks: int = 12) -> ModelProfile:
    first = replace(
        block(1, 8 * MIB), name="first", forward=PassWork(work(0.0), work(0.5, 0.1)), activations=Line(MIB, 0)
    )
    last = replace(block(1, 8 * MIB), name="last", activations=Line(9 * MIB, 0), output=Line(0, 0))
    units = (first, block(num_blocks), last)
    num_params = sum(unit.num_params * unit.count for unit in units)
    state = 16 * num_params
    per_sample = sum((unit.per_sample * unit.count for unit in units), Work())
    steps = {Layout(): StepWork(Work(), per_sample, work(0.0, 2.0))}
    curves = {Layout(): line(state / MIB, 500)}
    return ModelProfile("s", num_params, state, curves, steps, units=units, divisions=Divisions(8, True, 12, 1))


def ways(num_ranks: int, batch: int = 32, kinds: Sequence[DeviceKind] = (V100,), **changes: object) -> list[Way]:
    return CandidateWays(replace(gpt(), **changes), kinds, batch).of(num_ranks, num_ranks)  # type: ignore[arg-type]


def taken(way: Way, num: int, *, again: bool) -> tuple[float, float]:
    """Seconds and bytes of a step on one stage, with all blocks recomputed or none."""
    costs = way.costs[0]
    finite = np.isfinite(costs.recompute_seconds)
    extra = costs.recompute_seconds[finite].sum() if again else 0.0
    kept = np.where(finite & again, costs.recomputed_kept_bytes, costs.kept_bytes)
    seconds = num * (costs.pass_seconds.sum() + extra) + costs.update_seconds.sum() + costs.closing_seconds
    held = costs.state_bytes.sum() + kept.sum() + costs.transient_bytes + (costs.restored_bytes if again else 0.0)
    return float(seconds), float(held)


def test_a_whole_model_on_one_stage_costs_what_the_planner_says_before_it_corrects_the_memory() -> None:
    pricer, model, seen = Pricer(gpt(), V100), ModelCosts(gpt(), V100), set()
    for way in ways(4):
        if way.num_stages == 1:
            num = 32 // way.samples
            seen.add((way.spread.short, way.spread.selective))
            for again in (False, True):
                spread = way.spread if again else replace(way.spread, recompute=False, selective=False)
                price = pricer.price(spread, way.micro_batch, num)
                expected = price.seconds, price.peak_bytes / (model.correction(way.micro_batch) if num == 1 else 1)
                assert taken(way, num, again=again) == pytest.approx(expected, rel=1e-6), spread
    degrees = {"FSDP ×4", "DP ×4", "ZeRO-1 ×4", "TP ×4", "FSDP ×2 · TP ×2", "DP ×2 · TP ×2"}
    degrees |= {name.replace("TP", "TP+SP") for name in degrees}
    degrees |= {"ZeRO-2 ×4", "ZeRO-2 ×2 · TP ×2", "DP ×2 · FSDP ×2", "DP ×2 · ZeRO-2 ×2"}
    assert {name for name, _ in seen} == degrees and {selective for _, selective in seen} == {False, True}


def test_no_rank_holds_less_than_its_share_of_the_states() -> None:
    for way in ways(4):
        least = gpt().state_bytes / way.spread.dp_shard / way.spread.tp
        assert way.spread.zero1 or way.costs[0].state_bytes.sum() >= least * (1 - 1e-9)


def test_slow_links_that_computation_cannot_hide_count_as_the_planner_counts_them() -> None:
    assert V100.links is not None
    slow = replace(V100.links.inside, bytes_per_second=replace(V100.links.inside.bytes_per_second, value=2e8))
    kind = replace(V100, links=replace(V100.links, inside=slow))
    pricer = Pricer(gpt(), kind)
    shards = [way for way in ways(4, kinds=[kind]) if way.spread.dp_shard == 4]
    for way in shards:
        num = 32 // way.samples
        price = pricer.price(replace(way.spread, recompute=False, selective=False), way.micro_batch, num)
        assert price.communication_seconds > 0.2 * price.seconds
        assert taken(way, num, again=False)[0] == pytest.approx(price.seconds)
        assert taken(way, num, again=True)[0] == pytest.approx(pricer.price(way.spread, way.micro_batch, num).seconds)
    assert shards


def test_degrees_divide_what_the_model_says_and_the_batch() -> None:
    for way in ways(8, batch=12, divisions=Divisions(2, True, 3, 1)):
        assert way.spread.tp <= 2
        assert way.num_stages in (1, 2)
        assert way.samples * (12 // way.samples) == 12
    assert {way.num_stages for way in ways(8)} == {1, 2, 4, 8}
    undivided = ways(8, divisions=Divisions())
    assert {way.spread.short for way in undivided} == {"DP ×8", "ZeRO-1 ×8"} | {
        f"{copies}{kept} ×{shards}"
        for copies, shards in (("", 8), ("DP ×2 · ", 4), ("DP ×4 · ", 2))
        for kept in ("FSDP", "ZeRO-2")
    }
    assert {way.spread.short for way in ways(8, batch=9)} == {
        "1 rank",
        *(f"{name} ×{degree}" for name in ("TP", "TP+SP") for degree in (2, 4, 8)),
    }, "9 is odd"


def test_only_ways_and_micro_batches_that_the_hints_allow_are_searched() -> None:
    limits = Limit("pp", 2, 4, "pipeline", "the model"), Limit("micro_batches", 8, 8, "pipeline", "the model")
    allowed = ways(8, divisions=replace(gpt().divisions, constraints=PlanConstraints(limits)))
    assert {way.num_stages for way in allowed} == {2, 4}
    assert {32 // way.samples for way in allowed} == {8}
    split = (Limit("tp", 2, 2, "split", "blocks"), Limit("shares", 1, 1, "default", "the model"))
    allowed = ways(8, divisions=replace(gpt().divisions, constraints=PlanConstraints(split)))
    assert {(way.num_stages, way.spread.short) for way in allowed} == {(4, "TP ×2"), (4, "TP+SP ×2")}


def test_pipelines_have_a_micro_batch_for_each_stage_and_few_sizes_are_tried() -> None:
    listed = ways(16, batch=16 * 1024)
    for way in listed:
        num = 16 * 1024 // way.samples
        assert num >= (way.num_stages or 1) and (way.num_stages == 1 or num <= 8 * (way.num_stages or 1))
    sizes = {way.micro_batch for way in listed if way.spread.dp_shard == 16}
    assert len(sizes) == MOST_SIZES and {1, 1024} <= sizes


def test_the_ends_of_the_model_are_never_recomputed() -> None:
    for way in ways(2):
        infinite = np.isinf(way.costs[0].recompute_seconds)
        assert list(np.flatnonzero(infinite)) == [0, 13]


def test_stages_are_numbered_freely_on_unlike_devices_and_else_divide_their_number() -> None:
    two = CandidateWays(gpt(), [V100, gpu("P100")], 60).of(3, 4)
    assert {way.num_stages for way in two} == {1, 2, 3, 4}
    assert {way.num_stages for way in CandidateWays(gpt(), [V100], 60).of(3, 3)} == {1, 3}
    assert {way.num_stages for way in CandidateWays(gpt(), [V100], 60).of(3, 4)} == {1, 2, 4}
    for way in two:
        fast, slow = way.costs
        assert (slow.forward_seconds > fast.forward_seconds).all() and (slow.kept_bytes == fast.kept_bytes).all()


def test_nothing_communicates_without_links_and_by_flops_nothing_is_recomputed_selectively() -> None:
    listed = ways(4, kinds=[FLOP_COUNTER])
    assert listed and not any(way.spread.selective for way in listed)
    for way in listed:
        assert not way.costs[0].message_seconds.any() and not way.costs[0].closing_seconds
    flops = sum(unit.per_sample.flops * unit.count + unit.fixed.flops * unit.count for unit in gpt().units)
    (alone,) = ways(1, batch=1, kinds=[FLOP_COUNTER])
    assert alone.costs[0].pass_seconds.sum() == pytest.approx(flops)


def test_a_simulated_stage_has_the_costs_of_its_units_with_recompute() -> None:
    candidate = CandidateWays(gpt(), [V100], 32)
    way = next(way for way in candidate.of(2, 2) if way.num_stages == 2)
    plain, again = (candidate.stage_costs(way, [StageUnits(0, 5, 0, frozenset(units))])[0] for units in ((), (1, 2)))
    costs = way.costs[0]
    assert again.forward_seconds == plain.forward_seconds == pytest.approx(costs.forward_seconds[:5].sum())
    extra = again.input_seconds + again.weight_seconds - plain.input_seconds - plain.weight_seconds
    assert extra == pytest.approx(2 * costs.recompute_seconds[1])
    saved = costs.kept_bytes[1] - costs.recomputed_kept_bytes[1]
    assert plain.kept_bytes - again.kept_bytes == pytest.approx(2 * saved, abs=1)
    assert again.state_bytes - plain.state_bytes == pytest.approx(costs.restored_bytes, abs=1)


def test_the_search_recomputes_only_as_many_blocks_as_memory_needs() -> None:
    candidates = [way for way in ways(1, batch=8) if way.micro_batch == 8 and not way.spread.selective]
    least, most = (taken(candidates[0], 1, again=again)[1] for again in (True, False))
    numbers = []
    for capacity in np.linspace(least, most, 5):
        plan = search(candidates, [Devices("V100", 1, int(capacity) + 1)], batch=8)
        assert plan is not None and max(plan.peak_bytes) <= capacity + 1
        numbers.append(len(plan.recomputed))
    assert numbers[0] == 12
    assert numbers[-1] == 0
    assert numbers == sorted(numbers, reverse=True)
    assert 0 < numbers[2] < 12
