"""Plans with what earlier attempts needed. The planner here has a table: what each plan needs by its trace."""

from __future__ import annotations

from collections.abc import Mapping

from estimators.learning import Ending, Learned, PastAttempt
from estimators.memory import Extra
from estimators.model import MIB, Layout, Plan, Prediction
from placement.option import NoPlan
from placement.planning.answers import Answer, ChosenPlan, Untraced
from placement.planning.learned import choose_learned

OFFERED_MIB = 100
ALONE, PAIR, FOUR = Plan(8), Plan(4, dp_shard=2), Plan(2, dp_shard=4)


def choose(
    needs_mib: Mapping[Plan, int],
    own_bytes: Mapping[Plan, int] | None = None,
    learned: Mapping[Plan, int] | None = None,
) -> Answer:
    """The answer for a candidate with these plans, in the order of preference; all figures are MiB."""

    def ask(extra: Extra) -> Answer:
        for plan, mib in needs_mib.items():
            cost = Prediction(mib * MIB, extra_bytes=extra.bytes_for(plan.layout, plan.micro_batch))
            if cost.reserved_mib <= OFFERED_MIB:
                return ChosenPlan(plan, cost, "fits")
        return NoPlan(f"devices offer {OFFERED_MIB} MiB")

    family = {
        plan.layout: Learned(plan.layout, mib * MIB, MIB, num_trials=3, num_out_of_memory=1)
        for plan, mib in (learned or {}).items()
    }
    runs = [failure(plan, mib) for plan, mib in (own_bytes or {}).items()]
    return choose_learned(ask, runs, family)


def failure(plan: Plan, missing_mib: int) -> PastAttempt:
    """A run that ran out of memory with these MiB missing; its trace is so small that a quarter of it is nothing."""
    held_bytes = missing_mib * MIB + 3
    return PastAttempt(1, plan.layout, (), 3, 0, held_bytes, 0, Ending.OUT_OF_MEMORY, micro_batch=plan.micro_batch)


def chosen(answer: Answer) -> tuple[Plan, int, str]:
    """The plan, the MiB that were added, and the reason."""
    assert isinstance(answer, ChosenPlan), answer
    return answer.plan, answer.prediction.extra_bytes // MIB, answer.reason


def test_without_a_past_the_planner_decides_alone() -> None:
    assert chosen(choose({ALONE: 50})) == (ALONE, 0, "fits")
    assert choose({ALONE: 101}) == NoPlan("devices offer 100 MiB")


def test_what_a_family_needed_is_added_under_the_same_layout_only() -> None:
    needs = {ALONE: 60, PAIR: 40}
    assert chosen(choose(needs, learned={PAIR: 70})) == (ALONE, 0, "fits")
    plan, extra, reason = chosen(choose(needs, learned={ALONE: 30}))
    assert (plan, extra) == (ALONE, 30)
    assert (
        reason == "fits; with 30.0 MiB learned from 3 trials of this family with layout single, 1 of them out of memory"
    )


def test_a_plan_that_was_refused_because_of_what_was_learned_is_named() -> None:
    plan, extra, reason = chosen(choose({ALONE: 60, PAIR: 40}, learned={ALONE: 50}))
    assert (plan, extra) == (PAIR, 0)
    assert "; not added to this plan: 50.0 MiB learned from 3 trials of this family with layout single" in reason


def test_what_a_family_needed_makes_no_candidate_infeasible() -> None:
    plan, extra, reason = chosen(choose({ALONE: 60}, learned={ALONE: 50}))
    assert (plan, extra) == (ALONE, 0)
    assert reason.startswith("fits; without 50.0 MiB learned from 3 trials")
    assert reason.endswith(", with which no plan fits")
    assert choose({ALONE: 101}, learned={ALONE: 50}) == NoPlan("devices offer 100 MiB"), "its trace decides"


def test_what_a_candidate_itself_needed_is_added_everywhere_while_a_plan_fits() -> None:
    plan, extra, reason = chosen(choose({ALONE: 80, PAIR: 40}, own_bytes={ALONE: 30}))
    assert (plan, extra) == (PAIR, 30)
    assert reason == "fits; with 30.0 MiB beyond the trace, as it ran out of memory with layout single"


def test_otherwise_it_is_divided_as_plans_divide_the_model() -> None:
    plan, extra, reason = chosen(choose({PAIR: 80, FOUR: 75}, own_bytes={PAIR: 30}))
    assert (plan, extra) == (FOUR, 15)
    assert "; with 15.0 MiB beyond the trace, as it ran out of memory with layout fsdp2" in reason


def test_no_plan_forgets_what_was_measured_under_another_layout() -> None:
    """One rank needed 97 MiB beyond its trace: of its other layouts, none is tried again as if nothing had happened."""
    again = Plan(4, 2)
    assert isinstance(choose({ALONE: 60, again: 60, Plan(8, recompute=True): 40}, own_bytes={ALONE: 97}), NoPlan)


def test_infeasible_by_its_own_failures_says_that_this_is_learned_by_how_much_and_from_what() -> None:
    answer = choose({PAIR: 80, FOUR: 85}, own_bytes={PAIR: 30, FOUR: 40})
    assert answer == NoPlan(
        "devices offer 100 MiB. This counts 40.0 MiB beyond the trace, as it ran out of memory with layout fsdp2, "
        "fsdp4; plans divide these bytes as they divide the model. By its trace alone it would fit (FSDP over 2 ranks, "
        "micro-batch 4: one rank needs 80 MiB)"
    )


def test_of_own_and_family_the_larger_is_added_and_tensors_correct_the_prediction() -> None:
    answer = choose({ALONE: 20}, own_bytes={ALONE: 30}, learned={ALONE: 40})
    assert isinstance(answer, ChosenPlan)
    assert (answer.prediction.extra_bytes, answer.prediction.bias_bytes) == (40 * MIB, MIB)
    _, extra, reason = chosen(choose({ALONE: 20}, own_bytes={ALONE: 50}, learned={ALONE: 40}))
    assert extra == 50
    assert "learned" not in reason


def test_a_missing_trace_is_asked_for_first() -> None:
    assert choose_learned(lambda extra: Untraced(Layout()), [failure(ALONE, 5)], {}) == Untraced(Layout())
