"""The exact search has a plan for each power of two of devices, and none that studies choose from is faster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import pytest

from estimators.devices.catalogue import gpu
from estimators.devices.kind import FLOP_COUNTER, DeviceKind, Figure
from estimators.memory import GPU_MARGIN
from estimators.model import Divisions, Layout
from estimators.profile import ModelProfile
from placement.exact.best_plans import ExactSearch
from placement.model import Cluster, Device
from placement.option import Option
from placement.pipelining.cuts import even_cut
from placement.planning.question import Question, divisors
from placement.planning.ways import list_ways
from placement.pricing.pricer import Pricer
from placement.pricing.unit_costs import ModelCosts
from tests.placement.exact.test_candidate_ways import gpt

V100 = gpu("V100-32")


def cluster(**counts: tuple[int, int]) -> Cluster:
    """Devices by kind: (number, MiB of each)."""
    return Cluster(
        tuple(
            Device(f"{kind}/{index}", kind, index, kind, mib)
            for kind, (count, mib) in counts.items()
            for index in range(count)
        )
    )


def searched(
    mib: int, count: int, batch: int = 32, kind: DeviceKind = V100, profile: ModelProfile | None = None
) -> ExactSearch:
    return ExactSearch(Question(profile or gpt(), batch, cluster(one=(count, mib))), {"one": kind})


def test_there_is_a_plan_for_each_power_of_two_of_devices_and_all_fit() -> None:
    plans = searched(30_000, 8).best()
    assert [option.plan.world_size for option in plans] == [1, 2, 4, 8]
    for option in plans:
        assert option.fits and option.prediction.reserved_mib <= option.offered_mib == 30_000
        assert option.prediction.margin_bytes == GPU_MARGIN.bytes_for(
            option.prediction.peak_bytes, option.plan.world_size
        )
        assert sum(option.refinement.fullest.bytes_by_category.values()) == option.prediction.peak_bytes
        assert option.refinement.devices == {"one": option.plan.world_size} and sum(option.refinement.cut) == 12
    seconds = [option.comparable_seconds for option in plans]
    assert seconds == sorted(seconds, reverse=True), "more devices are faster"


@pytest.mark.parametrize("mib", [3_000, 5_000, 30_000])
def test_no_way_that_studies_choose_from_fits_and_is_faster(mib: int) -> None:
    profile, batch = gpt(), 32
    pricer, model = Pricer(profile, V100), ModelCosts(profile, V100)
    for option in searched(mib, 4, batch).best():
        capacity = GPU_MARGIN.largest_peak_bytes(mib, option.plan.world_size)
        ways = [way for way in list_ways(profile.divisions, option.plan.world_size) if way.pp == way.co_shard == 1]
        for way in ways:
            share = batch // way.dp_shard // way.dp_replicate
            for size in divisors(share):
                price = pricer.price(way, size, share // size)
                if price.peak_bytes / model.correction(size) <= capacity:
                    assert option.comparable_seconds <= price.seconds * (1 + 1e-5), (option, way, size)


def test_short_memory_recomputes_some_blocks_and_ranks_can_train_that() -> None:
    only = replace(gpt(), divisions=Divisions())
    plans = [searched(mib, 1, 1, profile=only).best() for mib in range(1_000, 2_100, 25)]
    options = [option for of_memory in plans for option in of_memory]
    numbers = [len(option.refinement.recomputed) for option in options]
    assert numbers[0] == 12
    assert numbers[-1] == 0
    assert any(0 < num < 12 for num in numbers)
    seconds = [option.comparable_seconds for option in options]
    assert seconds == sorted(seconds, reverse=True), "memory saves time"
    for option in options:
        again = option.refinement.recomputed
        assert option.trained is not None and option.trained.recomputed == (again if len(again) < 12 else ())
        assert option.plan.recompute == bool(option.refinement.recomputed) and option.plan.batch == 1


def test_a_layout_that_cannot_be_traced_is_only_planned() -> None:
    (option,) = [option for option in searched(30_000, 2).best() if option.plan.world_size == 2]
    assert option.trained is not None
    refused = gpt().without({option.plan.layout: "no"})
    (again,) = [option for option in searched(30_000, 2, profile=refused).best() if option.plan.world_size == 2]
    assert again.trained is None and again.seconds == option.seconds


def piped(mib: int, count: int, links: float) -> Option:
    """With slow links and large states, stages are the only good way."""
    assert V100.links is not None
    slow = replace(V100.links.inside, bytes_per_second=Figure(links, "assumed", "test"))
    kind = replace(V100, links=replace(V100.links, inside=slow))
    return searched(mib, count, 64, kind).best()[-1]


def test_the_time_of_a_pipeline_is_the_simulated_one() -> None:
    option = piped(30_000, 4, 1e7)
    pipeline, stages = option.refinement.pipeline, option.refinement.stages
    assert option.plan.pp > 1
    assert pipeline is not None
    assert option.bubble_share
    assert option.seconds == pipeline.simulation.makespan_seconds
    assert pipeline.cut == option.refinement.cut and pipeline.schedule.num_ranks == len(stages) == option.plan.pp
    assert pipeline.is_even == (option.refinement.cut == even_cut(12, option.plan.pp))
    blocks = [stage.blocks for stage in option.refinement.stages]
    assert blocks[0][0] == 0
    assert blocks[-1][1] == 12
    assert all(a[1] == b[0] for a, b in pairwise(blocks))


def test_ranks_that_share_cores_take_longer() -> None:
    shared = replace(V100, cores=Figure(1, "assumed", "test"))
    alone, slower = (searched(30_000, 4, kind=kind).best() for kind in (V100, shared))
    assert slower[0].seconds == pytest.approx(alone[0].seconds)
    assert slower[-1].comparable_seconds > 1.5 * alone[-1].comparable_seconds


UNLIKE: Mapping[str, DeviceKind] = {"fast": V100, "slow": gpu("P100")}


def test_on_unlike_devices_a_pipeline_gives_the_faster_kind_more_blocks() -> None:
    devices = cluster(fast=(2, 30_000), slow=(2, 15_000))
    options = ExactSearch(Question(gpt(), 64, devices), UNLIKE).best()
    assert [option.plan.world_size for option in options][:2] == [1, 2] and options[0].refinement.devices == {"fast": 1}
    both = options[-1]
    assert both.refinement.devices == {"fast": 2, "slow": 2} and both.trained is None
    blocks = {stage.kind: stage.blocks[1] - stage.blocks[0] for stage in both.refinement.stages}
    assert blocks["fast"] > blocks["slow"]
    assert both.comparable_seconds < options[1].comparable_seconds
    assert {stage.kind: stage.offered_mib for stage in both.refinement.stages} == {"fast": 30_000, "slow": 15_000}


def test_one_device_of_the_second_kind_communicates_nothing() -> None:
    option = ExactSearch(Question(gpt(), 64, cluster(slow=(1, 15_000), fast=(1, 30_000))), UNLIKE).best()[0]
    assert option.refinement.devices == {"fast": 1} and option.communication_share == pytest.approx(0, abs=1e-9)


def test_three_unlike_devices_can_all_be_used() -> None:
    options = ExactSearch(Question(gpt(), 64, cluster(fast=(2, 30_000), slow=(1, 15_000))), UNLIKE).best()
    assert options[-1].refinement.devices == {"fast": 2, "slow": 1} and len(options[-1].refinement.stages) == 3


def test_if_nothing_fits_the_closest_plan_says_how_much_is_missing_and_of_what() -> None:
    search = searched(700, 2, 32)
    assert search.best() == []
    closest = search.closest()
    assert closest is not None and not closest.fits
    assert set(closest.refinement.fullest.bytes_by_category) == {
        "parameters",
        "gradients and optimizer",
        "activations",
        "transient",
    }
    needed = closest.prediction.reserved_mib
    assert needed > 700
    assert not searched(int(0.9 * needed), 2).best()
    assert searched(needed, 2).best()


def test_without_speeds_flops_rank_the_plans() -> None:
    single, two = searched(30_000, 2, kind=FLOP_COUNTER).best()
    assert single.plan.short == "1 rank" and single.communication_share == 0
    assert single.seconds == pytest.approx(
        gpt().work[Layout()].step(single.plan.micro_batch, single.plan.num_micro_batches).flops, rel=0.01
    )
    assert two.seconds == pytest.approx(single.comparable_seconds / 2, rel=0.1)
