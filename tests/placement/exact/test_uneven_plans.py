"""Faster devices take more samples, and devices with little memory take fewer."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from estimators.constraints import Limit, PlanConstraints
from estimators.devices.catalogue import gpu
from estimators.devices.kind import DeviceKind
from placement.exact.best_plans import ExactSearch
from placement.exact.uneven_plans import best_uneven
from placement.option import Option
from placement.planning.question import Question
from placement.refinement import UnevenShares
from tests.placement.exact.test_best_plans import UNLIKE, cluster
from tests.placement.exact.test_candidate_ways import gpt

V100 = gpu("V100-32")


def slower(times: float) -> DeviceKind:
    rates = {
        name: replace(rate, per_op=0.0, per_flop=rate.per_flop * times, per_byte=rate.per_byte * times)
        for name, rate in V100.rates.items()
    }
    return replace(V100, name="slow", rates=rates)


def uneven(fast: tuple[int, int], slow: tuple[int, int], batch: int = 64, times: float = 1.66) -> Option:
    kinds = {"fast": slower(1.0), "slow": slower(times)}
    option = best_uneven(Question(gpt(), batch, cluster(fast=fast, slow=slow)), kinds)
    assert option is not None and option.trained == option.plan
    return option


def shares_of(option: Option) -> UnevenShares:
    assert option.refinement.shares is not None
    return option.refinement.shares


def test_faster_devices_take_more_samples() -> None:
    option = uneven((8, 30_000), (8, 30_000))
    assert shares_of(option).samples == {"fast": (5,) * 8, "slow": (3,) * 8} and option.plan.num_micro_batches == 1
    assert option.plan.world_size == 16
    assert option.plan.micro_batch == 5
    assert option.refinement.devices == {"fast": 8, "slow": 8}
    assert option.plan.shares == (5,) * 8 + (3,) * 8 and option.plan.batch == 64
    assert shares_of(option).even_seconds / option.comparable_seconds == pytest.approx(4 * 1.66 / 5, rel=0.05)


def test_every_sample_of_the_batch_is_taken_once() -> None:
    for batch in (16, 30, 64, 100):
        option = uneven((3, 30_000), (2, 30_000), batch)
        samples, even_seconds = shares_of(option).samples, shares_of(option).even_seconds
        assert option.plan.num_micro_batches * sum(map(sum, samples.values())) == batch
        assert min(map(min, samples.values())) >= 1
        assert option.seconds is not None
        assert option.seconds <= even_seconds


def test_a_device_with_little_memory_takes_fewer_samples() -> None:
    roomy, tight = uneven((2, 30_000), (2, 30_000), times=1.0), uneven((2, 30_000), (2, 3_500), times=1.0)
    samples = shares_of(roomy).samples
    assert samples["fast"] == samples["slow"]
    assert tight.prediction.reserved_mib <= tight.offered_mib and tight.comparable_seconds > roomy.comparable_seconds


def test_communication_is_part_of_the_step_and_slower_across_nodes() -> None:
    option = uneven((8, 30_000), (8, 30_000))
    assert option.communication_share and option.communication_share < 0.9
    alone = {name: replace(kind, links=None) for name, kind in UNLIKE.items()}
    without = best_uneven(Question(gpt(), 64, cluster(fast=(2, 30_000), slow=(2, 15_000))), alone)
    assert without is not None and without.communication_share == 0


def test_there_is_none_if_hints_ask_for_something_else() -> None:
    devices, kinds = cluster(fast=(2, 30_000), slow=(2, 30_000)), {"fast": slower(1.0), "slow": slower(1.66)}
    for limit, is_allowed in ((Limit("tp", 2, None, "split", ""), False), (Limit("tp", 1, 1, "default", ""), True)):
        profile = gpt()
        hinted = replace(profile, divisions=replace(profile.divisions, constraints=PlanConstraints((limit,))))
        assert (best_uneven(Question(hinted, 64, devices), kinds) is not None) == is_allowed


def test_there_is_none_on_devices_of_one_kind_or_without_room() -> None:
    assert best_uneven(Question(gpt(), 64, cluster(fast=(4, 30_000))), UNLIKE) is None
    assert best_uneven(Question(gpt(), 64, cluster(fast=(1, 600), slow=(1, 600))), UNLIKE) is None
    assert best_uneven(Question(gpt(), 1, cluster(fast=(1, 30_000), slow=(1, 15_000))), UNLIKE) is None


def test_the_batch_that_equal_shares_do_not_divide_has_no_time_for_them() -> None:
    assert shares_of(uneven((2, 30_000), (1, 30_000), batch=7)).even_seconds == inf


def test_it_agrees_with_the_search_where_all_devices_are_equally_fast() -> None:
    kinds = {"a": V100, "b": V100}
    option = best_uneven(Question(gpt(), 64, cluster(a=(2, 30_000), b=(2, 30_000))), kinds)
    searched_option = ExactSearch(Question(gpt(), 64, cluster(a=(4, 30_000))), kinds).best()[-1]
    assert option is not None and option.seconds == pytest.approx(searched_option.seconds, rel=0.1)
