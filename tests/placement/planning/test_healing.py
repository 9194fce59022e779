"""Trials that need more than their traces show, through the real planner: how often do they run out of memory?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimators.learning import Ending, PastAttempt
from estimators.memory import VIRTUAL_MARGIN, Extra
from estimators.model import MIB, Layout, Plan
from placement.model import VIRTUAL_KIND, Cluster, Device
from placement.option import NoPlan
from placement.planning.answers import ChosenPlan
from placement.planning.healing import WHOLE_DEVICE, corrections
from placement.planning.learned import choose_learned
from tests.placement.planning.test_planner import Model

Hidden = Callable[[Plan], float]
"""MiB that one rank of a plan needs beyond its trace."""


def states(mib: float) -> Hidden:
    """Gradients and optimizer states of parameters that a later step unfreezes."""
    return lambda plan: mib / (plan.dp_shard * plan.tp * plan.pp)


def activations(mib_per_sample: float) -> Hidden:
    """Blocks that join later."""
    return lambda plan: mib_per_sample * plan.micro_batch


def everywhere(mib: float) -> Hidden:
    """A buffer on every rank."""
    return lambda plan: mib


@dataclass
class Healed:
    plan: Plan | None
    failed: list[tuple[Plan, PastAttempt]]
    reason: str


def cluster(count: int, mib: int) -> Cluster:
    return Cluster(tuple(Device(f"d{n}", "n0", n, VIRTUAL_KIND, mib) for n in range(count)))


def heal(model: Model, hidden: Hidden, devices: Cluster, batch: int = 16, most: int = 40) -> Healed:
    """Run a trial until a plan is enough, or there is none. A rank fails with the first MiB that it lacks."""
    failed: list[tuple[Plan, PastAttempt]] = []
    while len(failed) < most:
        answer = choose_learned(lambda extra: model.choose(batch, devices, extra), [run for _, run in failed], {})
        if isinstance(answer, NoPlan):
            return Healed(None, failed, answer.reason)
        assert isinstance(answer, ChosenPlan)
        plan, prediction = answer.plan, answer.prediction
        reserved_bytes = prediction.reserved_mib * MIB
        if prediction.traced_bytes + hidden(plan) * MIB <= reserved_bytes:
            return Healed(plan, failed, answer.reason)
        run = PastAttempt(
            1, plan.layout, (VIRTUAL_KIND,), prediction.traced_bytes, prediction.extra_bytes, reserved_bytes,
            reserved_bytes + MIB, Ending.OUT_OF_MEMORY, micro_batch=plan.micro_batch,
        )  # fmt: skip
        failed.append((plan, run))
    raise AssertionError(f"out of memory {most} times")


@pytest.mark.parametrize(
    ("hidden", "mib", "count"),
    [
        (states(30), 96, 4),
        (states(110), 200, 4),  # unfreezing: one rank needs 163 MiB
        (activations(3), 96, 4),
        (activations(6), 200, 4),
        (everywhere(20), 96, 4),
        (everywhere(45), 96, 1),
    ],
)
def test_a_trial_that_fits_on_a_device_fits_after_two_failures_and_takes_no_other(
    hidden: Hidden, mib: int, count: int
) -> None:
    healed = heal(Model(state=20, sample=1.5), hidden, cluster(count, mib))
    assert healed.plan is not None, healed.reason
    assert healed.plan.world_size == 1
    assert len(healed.failed) <= 2, [(str(plan), run.reserved_bytes // MIB) for plan, run in healed.failed]


@pytest.mark.parametrize(
    ("hidden", "mib", "count"),
    [
        (states(240), 96, 4),
        (states(110), 96, 2),
        (states(500), 200, 4),
        (states(300), 96, 4),  # the only plan that fits leaves 5 MiB of its devices
    ],
)
def test_a_trial_that_outgrows_a_device_is_divided_after_three_failures(hidden: Hidden, mib: int, count: int) -> None:
    healed = heal(Model(state=20, sample=1.5), hidden, cluster(count, mib))
    assert healed.plan is not None, healed.reason
    assert len(healed.failed) <= 3, [(str(plan), run.reserved_bytes // MIB) for plan, run in healed.failed]


def test_a_trial_that_needs_sixteen_devices_heals_within_the_failures_that_a_study_allows() -> None:
    healed = heal(Model(state=20, sample=1.5), states(1000), cluster(16, 96))
    assert healed.plan is not None and healed.plan.world_size == 16, healed.reason
    assert len(healed.failed) <= 5, "the default of budget.max_oom"


@given(st.integers(5, 60), st.integers(1, 40), st.sampled_from([96, 160, 200]), st.sampled_from([2, 4, 8]))
@settings(max_examples=60, deadline=None)
def test_what_one_device_can_hold_takes_one(model_mib: int, more: int, mib: int, count: int) -> None:
    """A trial of the demo that needed 47 MiB took four devices of 96 after its second failure."""
    model = Model(state=model_mib / 2, sample=model_mib / 32)
    if model_mib + more + VIRTUAL_MARGIN.bytes_for((model_mib + more) * MIB, 1) / MIB > mib:
        return
    healed = heal(model, everywhere(more), cluster(count, mib))
    assert healed.plan is not None and healed.plan.world_size == 1, healed.reason
    assert len(healed.failed) <= 2


def test_a_prediction_that_is_a_fifth_too_low_heals_in_one_attempt() -> None:
    """FSDP over 4 ranks needed 154.5 MiB with a budget of 142, on devices of 200 where 165 do."""
    traced, needed = 124.5, 154.5
    model = Model(state=traced * 4 * 3 / 4, sample=0.01)
    healed = heal(model, everywhere(needed - traced), cluster(4, 200))
    assert healed.plan is not None and len(healed.failed) == 1
    assert healed.plan.dp_shard == healed.failed[0][0].dp_shard == 4


MIBS = st.integers(0, 400)


@pytest.mark.full
@given(MIBS, MIBS, st.integers(0, 20), st.integers(5, 80), st.sampled_from([96, 200]), st.sampled_from([1, 2, 4]))
@settings(max_examples=60, deadline=None)
def test_no_plan_is_offered_again_with_what_was_not_enough(
    state: int, rank: int, sample: int, model_mib: int, mib: int, count: int
) -> None:
    def hidden(plan: Plan) -> float:
        return max(states(state)(plan), everywhere(rank / 4)(plan), activations(sample)(plan))

    healed = heal(Model(state=model_mib, sample=1), hidden, cluster(count, mib))
    before: dict[Layout, PastAttempt] = {}
    for _, run in healed.failed:
        last = before.get(run.layout)
        is_full = run.reserved_bytes == mib * MIB
        assert (
            last is None or run.reserved_bytes > last.reserved_bytes or (is_full and run.micro_batch < last.micro_batch)
        ), "on a full device fewer samples at a time are all that is left"
        before[run.layout] = run
    if healed.plan is None and healed.failed:
        assert "by its trace alone it would fit" in healed.reason.lower()


def failure(plan: Plan, traced: int, reserved: int, measured: int) -> PastAttempt:
    sizes = (traced * MIB, 0, reserved * MIB, measured * MIB)
    return PastAttempt(1, plan.layout, ("virtual",), *sizes, Ending.OUT_OF_MEMORY, micro_batch=plan.micro_batch)


def test_what_was_held_is_the_least_that_the_next_plan_holds_divided_as_it_divides() -> None:
    least = corrections([failure(Plan(4, dp_shard=2), 40, 50, 56)])[-1]
    shares = {1: 32, 2: 16, 4: 8}
    assert {ranks: least.bytes_for(Layout(dp_shard=ranks)) // MIB for ranks in shares} == shares
    assert least.bytes_for(Layout(dp_shard=2, recompute=True, accumulate=True)) == 16 * MIB
    assert least.wanted_bytes(Layout(dp_shard=4)) == (56 + 10) * MIB // 2


def test_after_two_failures_the_device_is_its_own_and_after_three_a_plan_has_room_for_more() -> None:
    first, second, third = (failure(Plan(8), 40, mib, mib + 2) for mib in (48, 68, 98))
    once, twice, thrice = corrections([first]), corrections([first, second]), corrections([first, second, third])
    assert not any(extra.bytes_for(Layout(dp_shard=4)) > 24 * MIB for extra in once)
    assert twice[0] == Extra(rank_bytes=40 * MIB, held_bytes=WHOLE_DEVICE)
    assert [extra.state_bytes // MIB for extra in thrice[:2]] == [240, 120]
    assert thrice[2] == Extra(rank_bytes=70 * MIB, held_bytes=WHOLE_DEVICE)


def test_a_retry_reserves_what_was_held_and_more_where_the_device_has_the_room() -> None:
    model = Model(state=20, sample=1.5)
    first = model.chosen(16, cluster(1, 200))
    again = model.chosen(16, cluster(1, 200), Extra(rank_bytes=1, held_bytes=120 * MIB))
    assert again.plan == first.plan
    assert again.prediction.peak_bytes == 120 * MIB
    assert again.prediction.margin_bytes == VIRTUAL_MARGIN.bytes_for(120 * MIB, 1)
    full = model.chosen(16, cluster(1, 100), Extra(held_bytes=120 * MIB))
    assert full.prediction.reserved_mib == 100


def test_what_zero1_lacks_may_be_its_share_of_the_optimizer_states() -> None:
    layout = Plan(1, dp_replicate=4, zero1=True).layout
    run = PastAttempt(
        1, layout, (VIRTUAL_KIND,), 90 * MIB, 0, 100 * MIB, 101 * MIB, Ending.OUT_OF_MEMORY, micro_batch=1
    )
    by_states = [correction.state_bytes for correction in corrections([run]) if correction.state_bytes]
    assert by_states[0] == 4 * run.asked_bytes, "four ranks each lack as much, if it is optimizer states"
    assert by_states[-1] == run.held_bytes - run.traced_bytes, "and no more than this in all, if it is gradients"
    assert Extra(state_bytes=by_states[0]).bytes_for(Layout(dp_shard=4)) == run.asked_bytes
