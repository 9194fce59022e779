"""Options are ranked by fit, speed and ranks, and each plan has one row."""

from __future__ import annotations

from dataclasses import replace

from estimators.model import MIB, Plan, Prediction
from placement.exact.ranked_options import added, by_time, shortage, with_traced_memory
from placement.option import Evidence, Option
from placement.refinement import NO_REFINEMENT, Refinement
from tests.placement.exact.test_best_plans import piped, searched

PLAIN = Option(Plan(4), Prediction(50 * MIB), 96, seconds=1.0)
UNTRAINED = replace(PLAIN, evidence=Evidence.UNITS, refinement=Refinement("schedule"))


def test_what_fits_comes_first_then_what_is_faster_then_on_fewer_ranks_then_what_ranks_train() -> None:
    large = replace(PLAIN, prediction=Prediction(97 * MIB), seconds=0.1)
    slow, wide, rounded = replace(PLAIN, seconds=2.0), replace(PLAIN, plan=Plan(2, dp_shard=2)), 1.0 + 1e-9
    options = [large, slow, UNTRAINED, wide, replace(PLAIN, seconds=rounded)]
    assert sorted(options, key=by_time) == [replace(PLAIN, seconds=rounded), UNTRAINED, wide, slow, large]
    assert by_time(replace(PLAIN, seconds=None)) > by_time(slow), "no time is known"


def test_a_plan_has_one_row_which_takes_only_the_drawing_of_the_other() -> None:
    other = piped(30_000, 4, 1e7)
    same = replace(other, refinement=NO_REFINEMENT)
    (merged,) = added([same], [replace(other, refinement=replace(other.refinement, untrained=""))])
    assert merged == replace(same, refinement=Refinement(pipeline=other.refinement.pipeline))
    assert added([PLAIN], [UNTRAINED]) == [PLAIN, UNTRAINED], "its plan is only the nearest one"


def test_memory_that_is_known_of_a_plan_is_taken_if_ranks_train_exactly_that() -> None:
    by_units = replace(PLAIN, prediction=Prediction(70 * MIB), evidence=Evidence.UNITS)
    assert with_traced_memory(by_units, {PLAIN.plan: PLAIN}) == PLAIN
    assert with_traced_memory(UNTRAINED, {PLAIN.plan: by_units}) == UNTRAINED
    assert with_traced_memory(by_units, {}) == by_units


def test_the_shortage_is_that_of_the_plan_that_comes_closest() -> None:
    search = searched(700, 2)
    closest = search.closest()
    assert closest is not None
    large = replace(PLAIN, prediction=Prediction(960 * MIB, parts={"activations": 960 * MIB}))
    missing = shortage([large], closest)
    assert missing is not None
    assert not missing.is_traced
    assert missing.needed_mib == closest.prediction.reserved_mib
    larger = replace(large, offered_mib=959)
    missing = shortage([larger], closest)
    assert missing is not None
    assert missing.is_traced
    assert (missing.needed_mib, missing.offered_mib) == (960, 959)
    assert shortage([UNTRAINED], None) is None, "nothing was traced"


def test_an_option_that_ranks_do_not_train_says_so_in_its_refusal() -> None:
    assert UNTRAINED.trained is None
    assert PLAIN.trained == PLAIN.plan
    refusal = replace(UNTRAINED, offered_mib=40).refusal
    assert refusal == "1 rank, refined: one rank would need 50 MiB, devices offer 40"
