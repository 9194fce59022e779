"""The order of preference, the lazy questions, and the words of a refusal. Sizes leave room for any small margin."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimators.memory import GPU_MARGIN, NO_EXTRA, VIRTUAL_MARGIN, Extra, predict
from estimators.model import MIB, Layout, PeakCurve, Plan
from estimators.peaks.envelope import Envelope, Line, PeakTable
from estimators.profile import ModelProfile
from placement.model import VIRTUAL_KIND, Cluster, Device
from placement.planning.planner import ChosenPlan, NoPlan, Untraced, choose, margin_for


def cluster(*capacities_mib: int) -> Cluster:
    return Cluster(tuple(Device(f"d{n}", "n0", n, VIRTUAL_KIND, mib) for n, mib in enumerate(capacities_mib)))


FOUR = cluster(100, 100, 100, 100)


def line(fixed_mib: float, sample_mib: float) -> Envelope:
    fixed, slope = round(fixed_mib * MIB), round(sample_mib * MIB)
    return Envelope((Line(slope, fixed),), Line(0, fixed + slope))


def profile(state_mib: float) -> ModelProfile:
    """Of parameters and optimizer states; gradients are as large as a third of them."""
    return ModelProfile("s", 1, round(state_mib * 4 / 3 * MIB), {})


@dataclass
class Model:
    """States of ``state`` MiB and activations of ``sample`` MiB; gradients as large as a third of the states."""

    state: float
    sample: float
    traced: list[Layout] = field(default_factory=list)

    def curve(self, layout: Layout) -> PeakCurve:
        fixed = (self.state + self.state / 3 * (1.5 if layout.accumulate else 1)) / layout.dp_shard
        return line(fixed, self.sample / 4 if layout.recompute else self.sample)

    def choose(self, batch: int, devices: Cluster = FOUR, extra: Extra = NO_EXTRA) -> ChosenPlan | NoPlan:
        """As the caller does: trace what is asked for, and ask again."""
        known = profile(self.state)
        while True:
            answer = choose(known, batch=batch, cluster=devices, extra=extra)
            if not isinstance(answer, Untraced):
                return answer
            assert answer.layout not in known.curves, f"{answer.layout} was traced already"
            self.traced.append(answer.layout)
            known = known.with_curve(answer.layout, self.curve(answer.layout))

    def chosen(self, batch: int, devices: Cluster = FOUR, extra: Extra = NO_EXTRA) -> ChosenPlan:
        answer = self.choose(batch, devices, extra)
        assert isinstance(answer, ChosenPlan), answer
        return answer


def test_what_fits_on_one_rank_runs_there_whole_after_one_trace() -> None:
    model = Model(state=30, sample=1)
    choice = model.chosen(batch=32)
    assert choice.plan == Plan(32)
    assert model.traced == [Layout()]
    assert choice.prediction == predict(profile(30).with_curve(Layout(), model.curve(Layout())), Plan(32), 0)
    assert choice.reason == (
        f"1 rank, micro-batch 32: one rank needs {choice.prediction.reserved_mib} MiB, devices offer 100"
    )


def test_the_batch_is_accumulated_in_the_largest_part_that_fits_before_anything_is_recomputed() -> None:
    model = Model(state=30, sample=4)
    choice = model.chosen(batch=32)
    assert choice.plan == Plan(8, 4)
    assert model.traced == [Layout(), Layout(accumulate=True)]


def test_micro_batches_divide_the_share_of_a_rank() -> None:
    assert Model(state=30, sample=4).chosen(batch=30).plan == Plan(10, 3)
    assert Model(state=30, sample=4).chosen(batch=31).plan == Plan(1, 31), "31 is prime"


def test_recomputing_on_one_rank_goes_before_a_second_rank() -> None:
    model = Model(state=30, sample=100)
    choice = model.chosen(batch=8)
    assert choice.plan == Plan(1, 8, recompute=True)
    assert "(1 rank, micro-batch 1: one rank would need at least 1" in choice.reason
    assert model.traced == [Layout(), Layout(recompute=True), Layout(recompute=True, accumulate=True)]


def test_states_too_large_for_a_degree_are_not_traced_there() -> None:
    model = Model(state=150, sample=0.5)
    choice = model.chosen(batch=32)
    assert choice.plan.dp_shard == 4
    assert all(layout.dp_shard > 1 for layout in model.traced)
    only_four = Model(state=210, sample=0.5)
    assert only_four.chosen(batch=32).plan.dp_shard == 4
    assert {layout.dp_shard for layout in only_four.traced} == {4}


def test_the_smallest_degree_that_fits_is_taken_and_says_why_no_smaller() -> None:
    choice = Model(state=65, sample=1).chosen(batch=32)
    assert choice.plan == Plan(16, dp_shard=2)
    assert choice.reason.startswith("FSDP over 2 ranks, micro-batch 16: one rank needs ")
    assert "(1 rank, micro-batch 1, recompute: one rank would need 1" in choice.reason
    assert choice.reason.endswith("MiB, devices offer 100)")


def test_no_plan_says_what_the_best_one_needs_and_traces_nothing_when_states_are_enough() -> None:
    model = Model(state=500, sample=1)
    answer = model.choose(batch=32)
    assert answer == NoPlan(
        "needs at least 187 MiB per device on its best plan (FSDP over 4 ranks, states alone); "
        "the devices offer 100 MiB",
    )
    assert model.traced == []


def test_no_plan_names_the_best_of_all_plans() -> None:
    model = Model(state=60, sample=600)
    answer = model.choose(batch=8)
    assert isinstance(answer, NoPlan)
    assert "on its best plan (FSDP over 4 ranks, micro-batch 1, recompute)" in answer.reason
    assert answer.reason.startswith("needs at least 1") and answer.reason.endswith("; the devices offer 100 MiB")


def test_no_plan_prefers_what_was_traced_to_a_bound_by_states_alone() -> None:
    answer = Model(state=210, sample=200).choose(batch=8)
    assert isinstance(answer, NoPlan)
    assert "(FSDP over 4 ranks, micro-batch 1, recompute)" in answer.reason


def test_a_batch_that_more_ranks_do_not_divide_is_said() -> None:
    answer = Model(state=150, sample=60).choose(batch=6)
    assert isinstance(answer, NoPlan)
    assert answer.reason.endswith("(no wider plan: 4 ranks do not divide the batch of 6)")
    assert Model(state=150, sample=10).chosen(batch=8).plan.dp_shard == 4


def test_a_gang_is_sized_for_the_smallest_of_the_devices_it_needs() -> None:
    model = Model(state=90, sample=1)
    assert model.chosen(batch=32, devices=cluster(40, 200, 40)).plan == Plan(32)
    narrow = model.choose(batch=32, devices=cluster(100, 40))
    assert isinstance(narrow, NoPlan) and narrow.reason.startswith("needs at least 1")


def test_more_ranks_than_devices_are_never_planned() -> None:
    assert isinstance(Model(state=150, sample=1).choose(batch=32, devices=cluster(100, 100)), NoPlan)
    assert Model(state=150, sample=1).chosen(batch=32, devices=cluster(100, 100, 100, 100, 100)).plan.dp_shard == 4


def test_what_was_learned_from_an_out_of_memory_changes_the_plan() -> None:
    model = Model(state=30, sample=1)
    assert model.chosen(batch=32).plan == Plan(32)
    assert model.chosen(batch=32, extra=Extra(elsewhere=25 * MIB)).plan == Plan(16, 2)
    answer = model.choose(batch=32, extra=Extra(elsewhere=101 * MIB))
    assert isinstance(answer, NoPlan) and ", 101.0 MiB of it learned; the devices offer 100 MiB" in answer.reason


def test_what_one_layout_has_learned_changes_no_other() -> None:
    model = Model(state=30, sample=1)
    accumulated = model.chosen(batch=32, extra=Extra({Layout(): 90 * MIB}))
    assert accumulated.plan == Plan(16, 2) and accumulated.prediction.extra_bytes == 0
    alone = {
        Layout(recompute=recompute, accumulate=part): 90 * MIB for recompute in (False, True) for part in (False, True)
    }
    pair = model.chosen(batch=32, extra=Extra(alone))
    assert pair.plan == Plan(16, dp_shard=2) and ", 90.0 MiB of it learned, devices offer 100)" in pair.reason


def test_a_table_of_traced_peaks_is_not_asked_beyond_its_end() -> None:
    known = profile(10).with_curve(Layout(), PeakTable(((1, Line(0, 20 * MIB)), (2, Line(0, 40 * MIB)))))
    answer = choose(known, batch=8, cluster=FOUR)
    assert answer == Untraced(Layout(accumulate=True))
    known = known.with_curve(Layout(accumulate=True), PeakTable(((1, Line(0, 20 * MIB)), (2, Line(0, 40 * MIB)))))
    answer = choose(known, batch=8, cluster=FOUR)
    assert isinstance(answer, ChosenPlan) and answer.plan == Plan(2, 4)


@pytest.mark.parametrize(("batch", "extra_bytes"), [(0, 0), (-1, 0), (1, -1)])
def test_senseless_demands_are_refused(batch: int, extra_bytes: int) -> None:
    with pytest.raises(ValueError, match="at least"):
        choose(profile(1), batch=batch, cluster=FOUR, extra=Extra({Layout(): extra_bytes}))


def test_an_empty_cluster_makes_no_candidate_infeasible() -> None:
    with pytest.raises(ValueError, match="no devices"):
        choose(profile(1), batch=1, cluster=Cluster())


LAYOUTS = st.builds(Layout, dp_shard=st.sampled_from([1, 2, 4]), recompute=st.booleans(), accumulate=st.booleans())


@settings(max_examples=100, deadline=None)
@given(
    st.floats(0.1, 400),
    st.floats(0.01, 120),
    st.integers(1, 256),
    st.lists(st.integers(20, 200), min_size=1, max_size=9),
    st.integers(0, 50),
    st.dictionaries(LAYOUTS, st.integers(0, 80 * MIB), max_size=6),
)
def test_the_choice_is_the_first_that_fits_among_all_plans(
    state: float, sample: float, batch: int, capacities: list[int], extra_mib: int, under: dict[Layout, int]
) -> None:
    """Against brute force over every plan in the order of preference, with every layout traced."""
    model, devices, extra = Model(state, sample), cluster(*capacities), Extra(under, extra_mib * MIB)
    full = profile(state)
    fitting: list[Plan] = []
    for degree in (1, 2, 4, 8):
        if degree > len(capacities) or batch % degree:
            continue
        capacity = sorted(capacities, reverse=True)[degree - 1]
        for recompute in (False, True):
            for size in range(batch // degree, 0, -1):
                if (batch // degree) % size:
                    continue
                plan = Plan(size, batch // degree // size, dp_shard=degree, recompute=recompute)
                full = full.with_curve(plan.layout, model.curve(plan.layout))
                if predict(full, plan, extra.bytes_for(plan.layout)).reserved_mib <= capacity:
                    fitting.append(plan)
    answer = model.choose(batch, devices, extra)
    if fitting:
        assert isinstance(answer, ChosenPlan) and answer.plan == fitting[0]
        assert answer.plan.batch == batch
    else:
        assert isinstance(answer, NoPlan)
    assert len(model.traced) <= 16


def test_one_gpu_among_the_devices_makes_the_margin_that_of_gpus() -> None:
    gpu = Device("g", "n1", 0, "H100", 100)
    assert margin_for(cluster(100, 100)) == VIRTUAL_MARGIN
    assert margin_for(Cluster((*cluster(100).devices, gpu))) == GPU_MARGIN
    assert GPU_MARGIN.fixed_bytes(2) > VIRTUAL_MARGIN.fixed_bytes(2) + 500 * MIB, "room for NCCL"
