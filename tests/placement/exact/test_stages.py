"""No cut of a staged way is faster than the one found."""

from __future__ import annotations

from itertools import combinations, pairwise
from math import inf

import numpy as np
import pytest

from benchmarks.planning.oracle import Question, draw, in_flight, stage_by_trying
from placement.exact.stages import Optimum, Recomputes, best_stages, fastest
from placement.exact.ways import StagedWay, list_staged_ways


def divided(seed: int) -> tuple[Question, list[StagedWay]]:
    question = draw(seed)
    return question, list_staged_ways(question.ways, question.devices, question.batch)


def all_sums(question: Question, staged: StagedWay) -> list[Optimum]:
    """Sum of stage times and maximum of every cut."""
    optima, stages, num = [], staged.num_stages, staged.num_micro_batches
    (costs,), (device,) = staged.way.costs, question.devices
    for ends in combinations(range(1, costs.num_units), stages - 1):
        pairs = []
        for index, (start, end) in enumerate(pairwise([0, *ends, costs.num_units])):
            held = in_flight(num, stages, index)
            pairs.append(stage_by_trying(costs, start, end, held, device.capacity_bytes))
        times, once = np.array(pairs).T
        if np.isfinite(times).all():
            optima.append(Optimum(float(times.sum()), float(((num - 1) * times + once).max())))
    return optima


@pytest.mark.parametrize("seeds", [range(60), range(60, 120)], ids=str)
def test_no_cut_of_a_staged_way_is_faster_than_the_one_found(seeds: range) -> None:
    for seed in seeds:
        question, ways = divided(seed)
        for staged in ways:
            optimum, may_be_slower = fastest(staged, question.devices, Recomputes(), inf)
            best = min((cut.seconds for cut in all_sums(question, staged)), default=inf)
            assert (optimum.seconds if optimum else inf) == pytest.approx(best)
            assert not may_be_slower


@pytest.mark.parametrize("seed", [11, 253])
def test_the_fastest_step_may_not_have_the_smallest_maximum(seed: int) -> None:
    question, ways = divided(seed)
    num_traded = 0
    for staged in ways:
        cuts = all_sums(question, staged)
        optimum, _ = fastest(staged, question.devices, Recomputes(), inf)
        if optimum is not None:
            assert optimum.seconds == pytest.approx(min(cut.seconds for cut in cuts))
            num_traded += optimum.largest_seconds > min(cut.largest_seconds for cut in cuts)
    assert num_traded


def test_a_limit_of_time_hides_slower_cuts_and_says_so() -> None:
    num_hidden = 0
    for seed in range(60):
        question, ways = divided(seed)
        for staged in ways:
            best, _ = fastest(staged, question.devices, Recomputes(), inf)
            if best is None:
                continue
            optimum, _ = fastest(staged, question.devices, Recomputes(), best.seconds)
            assert optimum is not None and optimum.seconds == pytest.approx(best.seconds)
            none, may_be_slower = fastest(staged, question.devices, Recomputes(), best.seconds * 0.99)
            assert none is None
            assert may_be_slower
            num_hidden += 1
    assert num_hidden > 30


def test_the_stages_take_as_long_as_the_optimum_says() -> None:
    for seed in range(60):
        question, ways = divided(seed)
        for staged in ways:
            recomputes = Recomputes()
            best, _ = fastest(staged, question.devices, recomputes, inf)
            if best is not None:
                stages = best_stages(staged, question.devices, recomputes, best)
                more = staged.num_micro_batches - 1
                slowest = max(more * stage.seconds + stage.once_seconds for stage in stages)
                assert sum(stage.seconds for stage in stages) + slowest == pytest.approx(best.seconds)
                assert all(stage.peak_bytes <= question.devices[0].capacity_bytes for stage in stages)
