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
    found = searched(30_000, 8).best()
    assert [one.plan.world_size for one in found] == [1, 2, 4, 8]
    for one in found:
        assert one.fits and one.prediction.reserved_mib <= one.offered_mib == 30_000
        assert one.prediction.margin_bytes == GPU_MARGIN.bytes_for(one.prediction.peak_bytes, one.plan.world_size)
        assert sum(one.refinement.fullest.bytes_by_category.values()) == one.prediction.peak_bytes
        assert one.refinement.devices == {"one": one.plan.world_size} and sum(one.refinement.cut) == 12
    seconds = [one.comparable_seconds for one in found]
    assert seconds == sorted(seconds, reverse=True), "more devices are faster"


@pytest.mark.parametrize("mib", [3_000, 5_000, 30_000])
def test_no_way_that_studies_choose_from_fits_and_is_faster(mib: int) -> None:
    profile, batch = gpt(), 32
    pricer, model = Pricer(profile, V100), ModelCosts(profile, V100)
    for one in searched(mib, 4, batch).best():
        capacity = GPU_MARGIN.largest_peak_bytes(mib, one.plan.world_size)
        ways = [way for way in list_ways(profile.divisions, one.plan.world_size) if way.pp == way.co_shard == 1]
        for way in ways:
            share = batch // way.dp_shard // way.dp_replicate
            for size in divisors(share):
                price = pricer.price(way, size, share // size)
                if price.peak_bytes / model.correction(size) <= capacity:
                    assert one.comparable_seconds <= price.seconds * (1 + 1e-5), (one, way, size)


def test_short_memory_recomputes_some_blocks_and_ranks_can_train_that() -> None:
    only = replace(gpt(), divisions=Divisions())
    plans = [searched(mib, 1, 1, profile=only).best() for mib in range(1_000, 2_100, 25)]
    found = [one for each in plans for one in each]
    numbers = [len(one.refinement.recomputed) for one in found]
    assert numbers[0] == 12
    assert numbers[-1] == 0
    assert any(0 < num < 12 for num in numbers)
    seconds = [one.comparable_seconds for one in found]
    assert seconds == sorted(seconds, reverse=True), "memory saves time"
    for one in found:
        again = one.refinement.recomputed
        assert one.trained is not None and one.trained.recomputed == (again if len(again) < 12 else ())
        assert one.plan.recompute == bool(one.refinement.recomputed) and one.plan.batch == 1


def test_a_layout_that_cannot_be_traced_is_only_planned() -> None:
    (one,) = [one for one in searched(30_000, 2).best() if one.plan.world_size == 2]
    assert one.trained is not None
    refused = gpt().without({one.plan.layout: "no"})
    (again,) = [one for one in searched(30_000, 2, profile=refused).best() if one.plan.world_size == 2]
    assert again.trained is None and again.seconds == one.seconds


def piped(mib: int, count: int, links: float) -> Option:
    """With slow links and large states, stages are the only good way."""
    assert V100.links is not None
    slow = replace(V100.links.inside, bytes_per_second=Figure(links, "assumed", "test"))
    kind = replace(V100, links=replace(V100.links, inside=slow))
    return searched(mib, count, 64, kind).best()[-1]


def test_the_time_of_a_pipeline_is_the_simulated_one() -> None:
    one = piped(30_000, 4, 1e7)
    pipeline, stages = one.refinement.pipeline, one.refinement.stages
    assert one.plan.pp > 1
    assert pipeline is not None
    assert one.bubble_share
    assert one.seconds == pipeline.simulation.makespan_seconds
    assert pipeline.cut == one.refinement.cut and pipeline.schedule.num_ranks == len(stages) == one.plan.pp
    assert pipeline.is_even == (one.refinement.cut == even_cut(12, one.plan.pp))
    blocks = [stage.blocks for stage in one.refinement.stages]
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
    found = ExactSearch(Question(gpt(), 64, devices), UNLIKE).best()
    assert [one.plan.world_size for one in found][:2] == [1, 2] and found[0].refinement.devices == {"fast": 1}
    both = found[-1]
    assert both.refinement.devices == {"fast": 2, "slow": 2} and both.trained is None
    blocks = {stage.kind: stage.blocks[1] - stage.blocks[0] for stage in both.refinement.stages}
    assert blocks["fast"] > blocks["slow"] and both.comparable_seconds < found[1].comparable_seconds
    assert {stage.kind: stage.offered_mib for stage in both.refinement.stages} == {"fast": 30_000, "slow": 15_000}


def test_one_device_of_the_second_kind_communicates_nothing() -> None:
    one = ExactSearch(Question(gpt(), 64, cluster(slow=(1, 15_000), fast=(1, 30_000))), UNLIKE).best()[0]
    assert one.refinement.devices == {"fast": 1} and one.communication_share == pytest.approx(0, abs=1e-9)


def test_three_unlike_devices_can_all_be_used() -> None:
    found = ExactSearch(Question(gpt(), 64, cluster(fast=(2, 30_000), slow=(1, 15_000))), UNLIKE).best()
    assert found[-1].refinement.devices == {"fast": 2, "slow": 1} and len(found[-1].refinement.stages) == 3


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
    one, two = searched(30_000, 2, kind=FLOP_COUNTER).best()
    assert one.plan.short == "1 rank" and one.communication_share == 0
    assert one.seconds == pytest.approx(
        gpt().work[Layout()].step(one.plan.micro_batch, one.plan.num_micro_batches).flops, rel=0.01
    )
    assert two.seconds == pytest.approx(one.comparable_seconds / 2, rel=0.1)
