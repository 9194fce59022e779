"""Cases are varied and drawn by the seed, and regret counts what the best plan would have saved."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from benchmarks.planning import gangs_part
from benchmarks.planning.gangs_part import Gang, Result
from benchmarks.running.results import Finding

EVERY = gangs_part.cases(False, 0)


def test_there_are_enough_gangs_over_all_axes_and_several_models() -> None:
    assert len(EVERY) >= 40 and len({str(gang) for gang in EVERY}) == len(EVERY)
    plans = [gang.plan for gang in EVERY]
    assert {plan.world_size for plan in plans} == {2, 4}
    for axis in ("dp_shard", "tp", "pp", "spatial"):
        assert {2, 4} <= {getattr(plan, axis) for plan in plans}
    assert any(plan.dp_shard == plan.dp_replicate == 2 for plan in plans)
    assert any(plan.dp_shard == plan.tp == 2 for plan in plans) and any(plan.co_shard > 1 for plan in plans)
    for switch in ("recompute", "selective", "zero1", "sequence_parallel"):
        assert any(getattr(plan, switch) for plan in plans)
    assert {plan.schedule for plan in plans if plan.pp > 1} == {"1f1b", "gpipe"}
    assert any(plan.num_micro_batches > 1 and plan.pp == 1 for plan in plans)


def test_plans_of_a_model_train_on_the_same_batch_so_that_they_can_be_compared() -> None:
    for name in {gang.name for gang in EVERY}:
        assert len({gang.plan.batch for gang in EVERY if gang.name == name}) == 1


def test_the_seed_draws_which_cases_are_unseen() -> None:
    drawn = [[gang.unseen for gang in gangs_part.cases(False, seed)] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert sum(drawn[0]) == int(gangs_part.UNSEEN_SHARE * len(EVERY))


def test_a_gang_reads_back_what_it_wrote() -> None:
    for gang in EVERY:
        assert Gang.from_json(gang.to_json()) == gang


def result(name: str, predicted: float, measured: float, *, unseen: bool = False, scaled: float = 0.0) -> Result:
    return Result(name, unseen, predicted, scaled or predicted, measured, 0.1, 0.2)


def test_regret_is_what_the_plan_predicted_fastest_takes_longer_than_the_fastest() -> None:
    results = [result("a", 1.0, 2.2), result("a", 2.0, 2.0), result("b", 1.0, 1.0), result("b", 3.0, 9.0)]
    assert gangs_part.regrets_pct(results) == pytest.approx({"a": 10.0, "b": 0.0})
    values = gangs_part.figures(results)
    assert values["gang_pairs"] == 4 and values["plan_regret_mean_pct"] == pytest.approx(5.0)
    assert values["plan_regret_max_pct"] == pytest.approx(10.0)


def test_what_others_took_is_left_out_of_the_scaled_error_and_regret() -> None:
    busy, quiet = result("a", 1.0, 2.0, scaled=2.0), result("a", 1.1, 1.1)
    assert busy.error_pct == pytest.approx(-50) and busy.scaled_error_pct == pytest.approx(0)
    assert gangs_part.regrets_pct([busy, quiet])["a"] == pytest.approx(100 * (2.0 / 1.1 - 1))
    assert gangs_part.regrets_pct([busy, quiet], steady=True)["a"] == pytest.approx(0)


def test_unseen_gangs_have_figures_of_their_own() -> None:
    values = gangs_part.figures([result("a", 1.1, 1.0), result("a", 1.5, 1.0, unseen=True)])
    assert values["gang_unseen_pairs"] == 1 and values["gang_unseen_step_median_pct"] == pytest.approx(50)
    assert values["gang_step_median_pct"] == pytest.approx(30)
    assert "gang_unseen_step_median_pct" not in gangs_part.figures([result("a", 1.1, 1.0)])


def test_notes_have_the_regret_of_each_model() -> None:
    fine = Finding("gangs", "fine", ["row"], asdict(result("a", 1.0, 1.0)))
    (note,) = gangs_part.notes([fine])
    assert "0.0 % longer" in note
