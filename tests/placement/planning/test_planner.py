"""The order of preference, the lazy questions, and the words of a refusal. Sizes leave room for any small margin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimators.axes import Spread
from estimators.constraints import Limit, Name, PlanConstraints
from estimators.devices.assumed import ASSUMED_LINKS
from estimators.devices.kind import DeviceKind, Figure, Rate
from estimators.learned_seconds import SlowDown, way_kind
from estimators.memory import GPU_MARGIN, NO_EXTRA, VIRTUAL_MARGIN, Extra, predict
from estimators.model import INDIVISIBLE, MIB, Divisions, Layout, PeakCurve, Plan, Prediction
from estimators.peaks.envelope import Envelope, Line, PeakTable
from estimators.peaks.units import PassWork, Unit
from estimators.profile import ModelProfile
from estimators.traits import NO_TRAITS, Traits
from estimators.work import StepWork, Work, WorkCounter
from placement.model import VIRTUAL_KIND, Cluster, Device
from placement.option import Evidence, NoPlan, Option
from placement.planning.answers import ChosenPlan, Untraced
from placement.planning.planner import PlanChoice, choose
from placement.planning.question import Question, degrees, divisors, margin_for
from placement.planning.refusals import causes
from placement.planning.traced_options import list_options
from placement.planning.ways import list_ways


def cluster(*capacities_mib: int) -> Cluster:
    return Cluster(tuple(Device(f"d{n}", "n0", n, VIRTUAL_KIND, mib) for n, mib in enumerate(capacities_mib)))


FOUR = cluster(100, 100, 100, 100)


def line(fixed_mib: float, sample_mib: float) -> Envelope:
    fixed, slope = round(fixed_mib * MIB), round(sample_mib * MIB)
    return Envelope((Line(slope, fixed),), Line(0, fixed + slope))


SPEED = DeviceKind("test", {"matmul": Rate(0.0, 1.0, 0.0)}, "test", links=ASSUMED_LINKS)
"""A device that takes a second for each FLOP, so that communication hardly counts."""


def profile(state_mib: float, sample_mib: float = 1.0, divisions: Divisions = INDIVISIBLE) -> ModelProfile:
    """Profile of four blocks, ``state_mib`` of parameters and optimizer states, and gradients of a third of it."""
    state, sample = round(state_mib * 4 / 3 * MIB), round(sample_mib * MIB)
    idle = PassWork(Work(), Work())
    passes = replace(idle, per_sample=flops(1e6 / 3)), replace(idle, per_sample=flops(2e6 / 3))
    block = Unit("block", state // 64, 1, *passes, Line(sample // 4, 0), Line(sample // 64, 0), count=4)
    ends = [
        replace(block, name=name, num_params=0, forward=idle, backward=idle, activations=Line(0, 0), count=1)
        for name in "ab"
    ]
    work = {Layout(): StepWork(Work(), flops(4e6), Work())}
    return ModelProfile("s", state // 16, state, {}, work, units=(ends[0], block, ends[1]), divisions=divisions)


def flops(number: float) -> Work:
    counter = WorkCounter()
    counter.add("matmul", number)
    return counter.work


@dataclass
class Model:
    """States of ``state`` MiB and activations of ``sample`` MiB; gradients as large as a third of the states."""

    state: float
    sample: float
    divisions: Divisions = INDIVISIBLE
    refused: Mapping[Layout, str] = field(default_factory=dict)
    traits: Traits = NO_TRAITS
    traced: list[Layout] = field(default_factory=list)
    slow_downs: Mapping[str, SlowDown] = field(default_factory=dict)
    evaluated: float = 0.0  # MiB of activations of a sample that is evaluated; 0: nothing is known of evaluations

    def evaluation(self, layout: Layout) -> PeakCurve | None:
        return line(self.state / layout.dp_shard, self.evaluated) if self.evaluated else None

    def curve(self, layout: Layout) -> PeakCurve:
        shards = layout.dp_shard * layout.tp * layout.pp * (layout.dp_replicate if layout.zero1 else 1)
        fixed = (self.state + self.state / 3 * (1.5 if layout.accumulate else 1)) / shards
        kept = self.sample / layout.tp / layout.spatial / layout.co_shard / layout.pp
        if layout.pp > 1:
            kept *= min(layout.num_micro_batches, layout.pp - layout.stage_index)
        return line(fixed, kept * (0.7 if layout.selective else 0.25 if layout.recompute else 1))

    @property
    def profile(self) -> ModelProfile:
        return replace(profile(self.state, self.sample, self.divisions), traits=self.traits)

    def choose(
        self,
        batch: int,
        devices: Cluster = FOUR,
        extra: Extra = NO_EXTRA,
        kind: DeviceKind | None = SPEED,
        widest: int = 1,
    ) -> ChosenPlan | NoPlan:
        """As the caller does: trace what is asked for, and ask again."""
        known_profile = self.profile
        while True:
            answer = choose(Question(known_profile, batch, devices, kind, widest, extra, self.slow_downs))
            if not isinstance(answer, Untraced):
                return answer
            assert answer.layout not in known_profile.curves, f"{answer.layout} was traced already"
            assert answer.layout not in known_profile.refusals, f"{answer.layout} cannot be traced"
            self.traced.append(answer.layout)
            if answer.layout in self.refused:
                known_profile = known_profile.without({answer.layout: self.refused[answer.layout]})
            else:
                evaluation = self.evaluation(answer.layout)
                known_profile = known_profile.with_curve(
                    answer.layout, self.curve(answer.layout), evaluation=evaluation
                )

    def chosen(self, batch: int, devices: Cluster = FOUR, extra: Extra = NO_EXTRA, **options: Any) -> ChosenPlan:
        """The plan where one fits; ``options`` are those of ``choose``."""
        answer = self.choose(batch, devices, extra, **options)
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


def test_recomputing_little_on_more_ranks_goes_before_recomputing_everything_on_one() -> None:
    model = Model(state=30, sample=100)
    choice = model.chosen(batch=8)
    assert choice.plan == Plan(1, 2, dp_shard=4, recompute=True, selective=True)
    assert "one rank would need at least 1" in choice.reason
    assert model.traced[0] == Layout()
    assert model.chosen(batch=8, devices=cluster(100)).plan == Plan(1, 8, recompute=True)


def test_a_layer_wider_than_a_device_is_divided_by_tensor_parallelism() -> None:
    model = Model(state=30, sample=300)
    assert isinstance(model.choose(batch=4), NoPlan)
    divided = Model(state=30, sample=300, divisions=Divisions(most_parts=8))
    assert divided.chosen(batch=4).plan.tp == 4
    in_parts = Model(state=30, sample=300, divisions=Divisions(most_parts=8, in_parts=True))
    assert in_parts.chosen(batch=4, devices=cluster(100)).plan.co_shard > 1, "there is no second device"


def test_a_volume_larger_than_a_device_is_divided_in_space() -> None:
    assert Model(state=10, sample=500, divisions=Divisions(most_slabs=4)).chosen(batch=2).plan.spatial > 1


def test_a_pipeline_holds_fewer_layers_and_says_so() -> None:
    narrow = Model(state=190, sample=20, divisions=Divisions(most_stages=4))
    assert isinstance(Model(state=190, sample=20).choose(batch=7), NoPlan), "FSDP does not divide a batch of 7"
    choice = narrow.chosen(batch=7)
    assert choice.plan.pp == 4 and choice.plan.batch == 7
    assert "1f1b pipeline of 4 stages" in choice.reason


@pytest.mark.full
@settings(max_examples=60)
@given(
    st.floats(20, 150),
    st.floats(0.5, 60),
    st.sampled_from([6, 8, 32]),
    st.floats(0.1, 30.0),
    st.sampled_from(["one rank", "FSDP", "pipeline"]),
)
def test_factors_that_are_equal_for_all_ways_change_no_plan(
    state: float, sample: float, batch: int, factor: float, kind: str
) -> None:
    """One known kind of way: all others count as it does."""
    divisions = Divisions(most_parts=4, most_stages=4)
    usual = Model(state, sample, divisions).choose(batch)
    slowed = Model(state, sample, divisions, slow_downs={kind: SlowDown(factor, 3)}).choose(batch)
    if isinstance(usual, NoPlan) or isinstance(slowed, NoPlan):
        assert slowed == usual
        return
    assert (slowed.plan, slowed.prediction, slowed.reason) == (usual.plan, usual.prediction, usual.reason)
    examined = (
        [option for option in chosen.options if option.evidence is not Evidence.UNITS] for chosen in (slowed, usual)
    )
    for option, other in zip(*examined, strict=True):
        assert option.plan == other.plan and (option.seconds is None) == (other.seconds is None)
        if option.seconds and other.seconds:
            assert option.seconds == pytest.approx(factor * other.seconds)


def test_a_kind_of_way_that_was_slower_than_predicted_gives_way_to_one_that_was_not() -> None:
    divisions = Divisions(most_parts=8)
    assert way_kind(Model(65, 1, divisions).chosen(batch=32).plan) == "FSDP"
    slow_downs = {"FSDP": SlowDown(3.0, 3), "tensor parallel": SlowDown(1.0, 3)}
    assert way_kind(Model(65, 1, divisions, slow_downs=slow_downs).chosen(batch=32).plan) == "tensor parallel"
    untried = {"FSDP": SlowDown(3.0, 3), "one rank": SlowDown(1.0, 9)}
    assert way_kind(Model(65, 1, divisions, slow_downs=untried).chosen(batch=32).plan) == "FSDP"


def test_one_rank_goes_first_however_slow_it_was() -> None:
    slow_downs = {"FSDP": SlowDown(1.0, 3), "one rank": SlowDown(9.0, 3)}
    assert Model(30, 1, slow_downs=slow_downs).chosen(batch=32).plan == Plan(32)


def test_wider_options_are_traced_and_each_is_faster_than_the_one_before() -> None:
    model = Model(state=10, sample=1)
    assert model.chosen(batch=8).wider == ()
    wide = model.chosen(batch=8, widest=4)
    assert wide.plan.world_size == 1 and [option.plan.world_size for option in wide.wider] == [2, 4]
    seconds = [option.seconds or 0.0 for option in wide.wider]
    assert seconds == sorted(seconds, reverse=True)
    assert all(option.fits and option.is_traced for option in wide.wider)
    assert {layout for option in wide.wider for layout in option.plan.layouts} <= set(model.traced)
    assert [option.plan.world_size for option in model.chosen(batch=8, widest=3).wider] == [2]


def test_a_wider_option_that_is_slow_by_its_trace_gives_way_to_the_next_one() -> None:
    priced = Model(state=10, sample=1).chosen(batch=8, widest=2).wider[0].plan

    class Slow(Model):
        @property
        def profile(self) -> ModelProfile:
            usual = super().profile
            return replace(usual, work={**usual.work, priced.layout: StepWork(Work(), flops(1e9), Work())})

    model = Slow(state=10, sample=1)
    assert [option.plan.layout for option in model.chosen(batch=8, widest=2).wider] != [priced.layout]
    assert priced.layout in model.traced


def test_no_wider_option_is_traced_where_it_would_be_no_faster() -> None:
    model = Model(state=10, sample=1)
    slow = replace(SPEED, rates={"matmul": Rate(0.0, 1e-12, 0.0)})
    assert model.chosen(batch=8, widest=4, kind=slow).wider == (), "communication takes longer than the work"
    shared = replace(SPEED, cores=Figure(1, "assumed", "one core"))
    assert model.chosen(batch=8, widest=4, kind=shared).wider == (), "its ranks would only wait for the core"
    assert model.chosen(batch=8, widest=4, kind=None).wider == (), "an assumed speed is no reason"


def test_what_was_learned_on_busy_devices_does_not_count_where_some_are_idle() -> None:
    slow_downs = {"one rank": SlowDown(4.0, 9), "FSDP": SlowDown(1.0, 3)}
    slow = replace(SPEED, rates={"matmul": Rate(0.0, 1e-12, 0.0)})
    assert Model(10, 1, slow_downs=slow_downs).chosen(batch=8, widest=4, kind=slow).wider == ()


def test_a_candidate_that_needs_several_devices_has_no_narrower_option() -> None:
    assert Model(state=150, sample=0.5).chosen(batch=32, widest=2).plan.world_size == 4


def test_a_way_that_cannot_be_traced_is_passed_over() -> None:
    usual = Model(state=65, sample=1).chosen(batch=32).plan
    refused = {
        layout: "no" for accumulate in (False, True) for layout in [replace(usual.layout, accumulate=accumulate)]
    }
    other = Model(state=65, sample=1, refused=refused).chosen(batch=32).plan
    assert other.layout != usual.layout


def answered(model: Model, left_out: set[Layout]) -> tuple[PlanChoice, ChosenPlan | NoPlan]:
    """The choice without the layouts that are left out, with curves for all others."""
    known_profile = model.profile
    known_profile = replace(known_profile, curves=dict(known_profile.curves), refusals={})
    choice = PlanChoice(Question(known_profile, 32, FOUR, SPEED))
    while isinstance(answer := choice.ask(left_out), Untraced):
        assert answer.layout not in left_out
        known_profile.curves[answer.layout] = model.curve(answer.layout)  # type: ignore[index]
    return choice, answer


def test_a_layout_that_is_left_out_is_never_asked_for_and_the_answer_names_it() -> None:
    model = Model(state=150, sample=0.1)
    best = model.chosen(batch=32)
    assert best.plan.world_size > 1
    left_out = set(best.plan.layouts) | {Layout(**{**best.plan.layout.values, "accumulate": True})}
    choice, answer = answered(model, left_out)
    assert isinstance(answer, ChosenPlan) and answer.plan != best.plan
    (passed_over, *_) = choice.passed_over(answer, left_out)
    assert passed_over.evidence is Evidence.UNITS and passed_over.plan.values == best.plan.values


WHOLE = Traits(couples_samples="it compares samples")


def test_a_batch_that_cannot_be_divided_gets_one_rank_and_one_micro_batch() -> None:
    assert Model(state=30, sample=1, traits=WHOLE).chosen(batch=32).plan == Plan(32)
    recomputing = Model(state=30, sample=4, traits=WHOLE)
    assert recomputing.chosen(batch=32).plan == Plan(32, recompute=True)
    assert not any(layout.divides_batch for layout in recomputing.traced), "nothing is traced that nobody may use"


def test_plans_that_cannot_be_used_are_not_compared() -> None:
    divided = Model(state=30, sample=1).chosen(batch=32)
    assert any(option.plan.layout.divides_batch for option in divided.options), "they would be faster"
    answer = Model(state=30, sample=1, traits=WHOLE, divisions=Divisions(most_parts=4)).chosen(batch=32)
    assert {option.plan.tp for option in answer.options} > {1}, "ranks may divide the model"
    assert not any(option.plan.layout.divides_batch for option in answer.options)
    assert answer.reason.endswith("; no division of the batch: it compares samples")
    one_by_one = Traits(couples_micro_batch="experts take the tokens together")
    answer = Model(state=60, sample=2, traits=one_by_one).chosen(batch=32)
    assert not any(layout.accumulate for option in answer.options for layout in option.plan.layouts)


@pytest.mark.parametrize("devices", [cluster(100), FOUR], ids=["one device", "four devices"])
def test_a_batch_that_fits_no_device_and_cannot_be_divided_has_no_plan(devices: Cluster) -> None:
    refusal = Model(state=30, sample=20, traits=WHOLE).choose(batch=32, devices=devices)
    assert isinstance(refusal, NoPlan)
    assert "micro-batch 32, recompute), 116 more than the 100 offered" in refusal.reason
    assert refusal.reason.endswith("; no division of the batch: it compares samples")


def test_nothing_is_passed_over_if_one_rank_fits() -> None:
    everything = {layout for way in list_ways(INDIVISIBLE, 4) for layout in Plan(1, 1, **way.values).layouts}
    choice, answer = answered(Model(state=30, sample=1), everything)
    assert isinstance(answer, ChosenPlan) and answer.plan == Plan(32)
    assert choice.passed_over(answer, everything) == ()


def test_states_too_large_for_a_degree_are_not_traced_there() -> None:
    model = Model(state=150, sample=0.5)
    assert model.chosen(batch=32).plan.world_size == 4
    assert all(layout.world_size > 1 for layout in model.traced[1:]), "the plain layout says what the units cost"
    only_four = Model(state=210, sample=0.5)
    assert only_four.chosen(batch=32).plan.world_size == 4
    assert {layout.world_size for layout in only_four.traced[1:]} == {4}


def test_the_reason_says_why_one_rank_is_not_enough() -> None:
    choice = Model(state=65, sample=1).chosen(batch=32)
    assert choice.plan == Plan(16, dp_shard=2)
    assert choice.reason == (
        "FSDP over 2 ranks, micro-batch 16: one rank needs 73 MiB, devices offer 100 (1 rank, micro-batch 1, selective "
        "recompute: one rank would need 109 MiB, devices offer 100)"
    )


def test_no_plan_says_what_the_best_one_needs_and_traces_nothing_when_states_are_enough() -> None:
    model = Model(state=500, sample=1)
    answer = model.choose(batch=32)
    assert answer == NoPlan(
        "needs at least 187 MiB per device on its best plan (FSDP over 4 ranks, states alone), "
        "87 more than the 100 offered",
    )
    assert model.traced == [Layout()], "which says what the states are"
    parts = (("parameters", 0, 125 * MIB), ("optimizer", 0, 375 * MIB))
    traced_profile = model.profile.with_curve(Layout(), PeakTable(((1, Line(0, 500 * MIB, parts)),)))
    learned = choose(Question(traced_profile, 32, FOUR, extra=Extra(rank_bytes=10 * MIB)))
    for no_plan, words in ((choose(Question(traced_profile, 32, FOUR)), ""), (learned, "learned 10.0 MiB, ")):
        assert isinstance(no_plan, NoPlan)
        assert f": parameters 31.2 MiB, gradients and optimizer 135.4 MiB, {words}margin 2" in no_plan.reason


def test_no_plan_names_the_best_of_all_plans() -> None:
    model = Model(state=60, sample=600)
    answer = model.choose(batch=8)
    assert isinstance(answer, NoPlan)
    assert "on its best plan (FSDP over 4 ranks, micro-batch 1, recompute)" in answer.reason
    assert answer.reason.startswith("needs at least 1") and answer.reason.endswith(" more than the 100 offered")


def test_no_plan_says_by_how_much_memory_and_of_which_categories() -> None:
    parts = {"parameters": 10, "gradients": 20, "optimizer": 30, "activations": 40, "scratch": 5, "batch": 1}
    peak = Line(0, 106 * MIB, tuple((name, 0, mib * MIB) for name, mib in parts.items()))
    traced_profile = profile(10).with_curve(Layout(), PeakTable(((1, peak),)))
    traced_profile = traced_profile.without(
        dict.fromkeys((Layout(recompute=True), Layout(recompute=True, selective=True)), "not here")
    )
    traced, learned = (
        choose(Question(traced_profile, 1, cluster(100), extra=Extra(rank_bytes=mib * MIB))) for mib in (0, 50)
    )
    assert isinstance(traced, NoPlan) and isinstance(learned, NoPlan)
    assert traced.reason == (
        "needs 117 MiB per device on its best plan (1 rank, micro-batch 1), 17 more than the 100 offered: "
        "parameters 10.0 MiB, gradients and optimizer 50.0 MiB, activations 40.0 MiB, transient 6.0 MiB, "
        "margin 10.4 MiB; no recompute: not here"
    )
    assert "transient 6.0 MiB, learned 50.0 MiB, margin 13.4 MiB; no recompute" in learned.reason


def test_no_plan_prefers_what_was_traced_to_a_bound_by_states_alone() -> None:
    answer = Model(state=210, sample=200).choose(batch=8)
    assert isinstance(answer, NoPlan)
    assert "(FSDP over 4 ranks, micro-batch 1, recompute)" in answer.reason


def test_a_batch_that_more_ranks_do_not_divide_is_said() -> None:
    answer = Model(state=150, sample=60).choose(batch=6)
    assert isinstance(answer, NoPlan) and "(FSDP over 3 ranks, micro-batch 1, recompute)" in answer.reason
    answer = Model(state=150, sample=60).choose(batch=2)
    assert isinstance(answer, NoPlan)
    assert answer.reason.endswith("(no wider plan: 4 ranks do not divide the batch of 2)")
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
    assert model.chosen(batch=32, extra=Extra(rank_bytes=25 * MIB)).plan == Plan(16, 2)
    answer = model.choose(batch=32, extra=Extra(rank_bytes=101 * MIB))
    assert isinstance(answer, NoPlan) and ", 101.0 MiB of it learned, 28 more than the 100 offered" in answer.reason


@pytest.mark.parametrize(("state", "extra_mib"), [(60, 0), (60, 101), (500, 0), (500, 101), (30, 101)])
def test_at_least_is_said_of_a_bound_by_the_trace_only_and_about_of_what_was_learned(
    state: int, extra_mib: int
) -> None:
    answer = Model(state=state, sample=600).choose(batch=32, extra=Extra(rank_bytes=extra_mib * MIB))
    assert isinstance(answer, NoPlan)
    assert answer.reason.startswith("needs about " if extra_mib else "needs at least ")
    assert ("MiB of it learned" in answer.reason) is bool(extra_mib)
    for evidence in (Evidence.AT_LEAST, Evidence.STATES):
        prediction = Prediction(200 * MIB, extra_bytes=extra_mib * MIB)
        option = Option(Plan(1), prediction, 100, evidence)
        assert option.is_bound is not bool(extra_mib)
        assert ("need at least" in str(option), "need about" in str(option)) == (not extra_mib, bool(extra_mib))


@pytest.mark.parametrize("extra_mib", [0, 30, 50])
def test_the_first_option_that_fits_is_the_chosen_one(extra_mib: int) -> None:
    model = Model(state=90, sample=10, divisions=Divisions(most_parts=4))
    choice = model.chosen(batch=8, extra=Extra(rank_bytes=extra_mib * MIB))
    assert next(option.plan for option in choice.options if option.fits) == choice.plan


def test_a_heavy_evaluation_gets_a_micro_batch_of_its_own_and_leaves_that_of_training_alone() -> None:
    light = Model(30, 1).chosen(32)
    heavy = Model(30, 1, evaluated=10).chosen(32)
    assert heavy.plan == replace(light.plan, evaluation_batch=4)
    assert heavy.prediction.reserved_mib == light.prediction.reserved_mib
    assert "micro-batch 32, evaluation 4: one rank needs" in heavy.reason


def test_an_evaluation_that_may_not_be_divided_gets_the_memory_for_all_its_samples() -> None:
    traits = WHOLE | Traits(evaluates_whole=WHOLE.couples_samples)
    undivided = Model(30, 1, evaluated=1.5, traits=traits).chosen(32)
    assert undivided.plan == Plan(32)
    assert undivided.prediction.reserved_mib > Model(30, 1).chosen(32).prediction.reserved_mib
    assert Model(30, 1, evaluated=1.5, traits=WHOLE).chosen(32).plan == Plan(32, evaluation_batch=28)


def test_memory_is_reserved_for_evaluating_one_sample_and_the_reason_says_what_for() -> None:
    choice = Model(30, 1, evaluated=50).chosen(32)
    assert (choice.plan.micro_batch, choice.plan.evaluation_batch) == (32, 1)
    assert choice.prediction.reserved_mib == 89
    assert "needs 89 MiB to evaluate 1 sample at a time (a training step alone 72.0 MiB)" in choice.reason
    sharded = Model(30, 1, evaluated=65).chosen(32)
    assert sharded.plan.world_size == 2, "the states that it needs are divided"
    refused = Model(30, 1, evaluated=300).choose(32)
    assert isinstance(refused, NoPlan)
    assert "to evaluate 1 sample at a time" in refused.reason
    assert refused.reason.endswith("more than the 100 offered: evaluate must return its metrics with smaller tensors")


def test_what_one_layout_has_learned_changes_no_other() -> None:
    model = Model(state=30, sample=1)
    accumulated = model.chosen(batch=32, extra=Extra({Layout(): 90 * MIB}))
    assert accumulated.plan == Plan(16, 2) and accumulated.prediction.extra_bytes == 0
    alone = {
        Layout(recompute=recompute, selective=selective, accumulate=part): 90 * MIB
        for recompute, selective in ((False, False), (True, False), (True, True))
        for part in (False, True)
    }
    pair = model.chosen(batch=32, extra=Extra(alone))
    assert pair.plan == Plan(16, dp_shard=2) and ", 90.0 MiB of it learned, devices offer 100)" in pair.reason


def test_a_table_of_traced_peaks_is_not_asked_beyond_its_end() -> None:
    traced_profile = profile(10).with_curve(Layout(), PeakTable(((1, Line(0, 20 * MIB)), (2, Line(0, 40 * MIB)))))
    answer = choose(Question(traced_profile, 8, FOUR))
    assert answer == Untraced(Layout(accumulate=True))
    traced_profile = traced_profile.with_curve(
        Layout(accumulate=True), PeakTable(((1, Line(0, 20 * MIB)), (2, Line(0, 40 * MIB))))
    )
    answer = choose(Question(traced_profile, 8, FOUR))
    assert isinstance(answer, ChosenPlan) and answer.plan == Plan(2, 4)


@pytest.mark.parametrize(("batch", "extra_bytes"), [(0, 0), (-1, 0), (1, -1)])
def test_senseless_demands_are_refused(batch: int, extra_bytes: int) -> None:
    with pytest.raises(ValueError, match="at least"):
        choose(Question(profile(1), batch, FOUR, extra=Extra({Layout(): extra_bytes})))


def test_an_empty_cluster_makes_no_candidate_infeasible() -> None:
    with pytest.raises(ValueError, match="no devices"):
        choose(Question(profile(1), 1, Cluster()))


LAYOUTS = st.builds(Layout, dp_shard=st.sampled_from([1, 2, 4]), recompute=st.booleans(), accumulate=st.booleans())


DIVISIONS = st.builds(
    Divisions,
    most_parts=st.sampled_from([1, 2, 4]),
    in_parts=st.booleans(),
    most_stages=st.sampled_from([1, 2, 4]),
    most_slabs=st.sampled_from([1, 2]),
)


@pytest.mark.full
@settings(max_examples=60, deadline=None)
@given(
    st.floats(0.1, 400),
    st.floats(0.01, 120),
    st.integers(1, 64),
    st.lists(st.integers(20, 200), min_size=1, max_size=5),
    st.integers(0, 50),
    st.dictionaries(LAYOUTS, st.integers(0, 80 * MIB), max_size=6),
    DIVISIONS,
)
def test_the_choice_fits_with_its_largest_micro_batch_and_one_rank_wins_wherever_it_fits(
    state: float,
    sample: float,
    batch: int,
    capacities: list[int],
    extra_mib: int,
    under: dict[Layout, int],
    divisions: Divisions,
) -> None:
    """Against every way and micro-batch, with all layouts traced, as far as their units say that they may fit."""
    model, devices, extra = Model(state, sample, divisions), cluster(*capacities), Extra(under, extra_mib * MIB)
    answer = model.choose(batch, devices, extra)
    fitting = dict(_fitting(model, batch, devices, extra))
    if isinstance(answer, NoPlan):
        assert not fitting or model.traced[1:] == [] or all(way != Spread() for way in fitting)
        return
    plan = answer.plan
    assert plan.batch == batch
    way = Spread(**plan.values)
    assert plan.micro_batch in fitting[way]
    if plan.pp == 1:
        assert plan.micro_batch == max(fitting[way])
    if Spread() in fitting:
        assert way == Spread(), "no way costs fewer device-seconds than one rank"


def _fitting(model: Model, batch: int, devices: Cluster, extra: Extra) -> Iterator[tuple[Spread, list[int]]]:
    for degree, offered_mib in degrees(devices):
        for way in list_ways(model.divisions, degree):
            share, rest = divmod(batch, way.dp_replicate * way.dp_shard)
            sizes = [] if rest else [size for size in divisors(share) if share // size >= way.pp]
            plans = [Plan(size, share // size, **way.values) for size in sizes]
            full = model.profile
            for plan in plans:
                for layout in plan.layouts:
                    full = full.with_curve(layout, model.curve(layout))
            margin = margin_for(devices)
            needs = [predict(full, plan, extra.bytes_for(plan.layout), margin).reserved_mib for plan in plans]
            if fitting_sizes := [
                plan.micro_batch for plan, need in zip(plans, needs, strict=True) if need <= offered_mib
            ]:
                yield way, fitting_sizes


def hinted(*limits: tuple[Name, int, int | None], divisions: Divisions | None = None) -> Divisions:
    constraints = tuple(Limit(name, least, most, "split", "blocks") for name, least, most in limits)
    return replace(divisions or Divisions(most_parts=4, most_stages=4), constraints=PlanConstraints(constraints))


def test_a_hint_takes_precedence_over_one_rank_and_the_reason_names_it() -> None:
    assert Model(30, 1, Divisions(most_parts=4)).chosen(batch=32).plan.world_size == 1
    model = Model(30, 1, hinted(("tp", 4, 4)))
    choice = model.chosen(batch=32)
    assert (choice.plan.tp, choice.plan.world_size) == (4, 4)
    assert choice.reason.endswith("; the model asks for tensor parallelism of degree 4 (hint split at blocks)")
    assert all(layout == Layout() or layout.tp == 4 for layout in model.traced)
    assert all(option.plan.tp == 4 for option in choice.options)


def test_a_default_changes_nothing_for_a_model_that_fits_on_one_rank() -> None:
    only_replicas = hinted(("tp", 1, 1), ("pp", 1, 1))
    assert Model(30, 1, only_replicas).chosen(batch=32).plan == Plan(32)
    wide = Model(state=30, sample=300, divisions=only_replicas).choose(batch=4)
    assert isinstance(wide, NoPlan), "only tensor parallelism divides a sample"
    assert wide.reason.endswith("; the model asks for no tensor parallelism and no pipeline (hint split at blocks)")


def test_a_pipeline_has_the_micro_batches_that_its_hint_asks_for() -> None:
    for num in (2, 8):
        choice = Model(30, 1, hinted(("pp", 2, None), ("micro_batches", num, num))).chosen(batch=32)
        assert (choice.plan.pp, choice.plan.num_micro_batches) == (2, num)


def test_split_stages_inside_replicas_are_chosen_if_the_hints_ask_for_them() -> None:
    hints = hinted(("shares", 2, 2), ("pp", 2, 2), ("tp", 2, 2))
    choice = Model(30, 1, hints).chosen(batch=32, devices=cluster(*[100] * 8))
    assert (choice.plan.num_shares, choice.plan.pp, choice.plan.tp) == (2, 2, 2)


@pytest.mark.parametrize(
    ("limits", "batch", "why"),
    [
        ([("tp", 4, 4), ("shares", 2, None)], 32, "this takes 8 devices, and there are 4"),
        ([("pp", 2, None), ("micro_batches", 3, 3)], 8, "for this the batch must be a multiple of 3, it is 8"),
        ([("shares", 4, 4)], 6, "for this the batch must be a multiple of 4, it is 6"),
        ([("pp", 4, 4)], 2, "for this the batch must be larger, it is 2"),
    ],
)
def test_hints_that_exclude_all_plans_are_named_with_what_is_missing(
    limits: list[tuple[Name, int, int | None]], batch: int, why: str
) -> None:
    hints = hinted(*limits)
    answer = Model(1, 0.1, hints).choose(batch)
    assert isinstance(answer, NoPlan)
    assert answer.reason == f"{hints.constraints.words}: {why}" and "split at blocks" in answer.reason


def test_if_no_way_that_the_hints_allow_can_be_traced_the_reason_says_why() -> None:
    ways = [Layout(tp=4), Layout(tp=4, sequence_parallel=True)]
    ways += [replace(way, recompute=True, selective=selective) for way in ways for selective in (False, True)]
    ways += [replace(way, accumulate=True) for way in ways]
    answer = Model(30, 1, hinted(("tp", 4, 4)), dict.fromkeys(ways, "a view of a part")).choose(batch=32)
    assert isinstance(answer, NoPlan) and answer.reason.endswith("cannot be trained: a view of a part")


def test_a_hinted_model_that_is_too_large_is_refused_by_its_memory_and_its_hints() -> None:
    answer = Model(1000, 1, hinted(("tp", 4, 4))).choose(batch=32)
    assert isinstance(answer, NoPlan)
    assert "tensor parallel over 4 ranks, states alone" in answer.reason and "hint split at blocks" in answer.reason


def test_only_options_that_the_hints_allow_are_listed() -> None:
    traced_profile = profile(30).with_curve(Layout(), line(30, 1))
    listed = list_options(Question(replace(traced_profile, divisions=hinted(("shares", 2, 2))), 32, FOUR))
    assert {option.layout.dp_shard for option in listed if isinstance(option, Untraced)} == {2} and len(listed) == 2
    assert list_options(Question(replace(traced_profile, divisions=hinted(("tp", 2, None))), 32, FOUR)) == []


def test_one_gpu_among_the_devices_makes_the_margin_that_of_gpus() -> None:
    gpu = Device("g", "n1", 0, "H100", 100)
    assert margin_for(cluster(100, 100)) == VIRTUAL_MARGIN
    assert margin_for(Cluster((*cluster(100).devices, gpu))) == GPU_MARGIN
    assert GPU_MARGIN.fixed_bytes(2) > VIRTUAL_MARGIN.fixed_bytes(2) + 500 * MIB, "room for NCCL"


def refused_under(why: str, kind: str) -> Mapping[Layout, str]:
    ways = (way for degree in (2, 4) for way in list_ways(INDIVISIBLE, degree) if getattr(way, kind) > 1)
    return {layout: why for way in ways for part in (1, 2) for layout in Plan(1, part, **way.values).layouts}


SHARED = "m.py, line 8: loss = model(x)\nValueError: a parameter is shared with another FSDP group\n→ use fully_shard"


def test_the_least_that_is_needed_is_that_of_plans_which_the_model_allows() -> None:
    """By their units only sharded plans come close, and none of them can be traced; ZeRO-1 would need the least."""
    model = Model(state=150, sample=1, refused=refused_under(SHARED, "dp_shard"))
    answer = model.choose(batch=16, devices=cluster(64, 64, 64, 64))
    assert isinstance(answer, NoPlan)
    assert "on its best plan (4 replicas (ZeRO-1)" in answer.reason
    assert answer.reason.endswith("; no FSDP: ValueError: a parameter is shared with another FSDP group")


def test_one_cause_of_several_kinds_of_plans_is_told_once() -> None:
    assert causes(profile(1), [Layout(tp=2)]) == ""
    kinds = {Layout(dp_shard=2): SHARED, Layout(dp_shard=4, recompute=True): "in other words", Layout(tp=2): SHARED}
    assert causes(profile(1).without({**kinds, Layout(zero1=True, dp_replicate=2): "sparse"}), []) == (
        "; no FSDP, tensor parallelism: ValueError: a parameter is shared with another FSDP group; no ZeRO-1: sparse"
    )
    assert len(causes(profile(1).without({Layout(tp=2): "x" * 999}), [])) < 250


def test_a_listed_way_that_fits_by_its_trace_is_a_plan_whatever_its_units_say() -> None:
    """A loss that calls the model twice hides its blocks: one unit is priced as if it were gathered whole."""
    model = Model(state=200, sample=1)
    single_unit = replace(model.profile.units[1], num_params=model.profile.num_params, count=1)
    traced_profile, devices = replace(model.profile, units=(single_unit,)), cluster(90, 90, 90, 90)
    answer: ChosenPlan | NoPlan | Untraced = Untraced(Layout())
    while isinstance(answer, Untraced):
        layout = answer.layout
        curve = model.curve(layout) if layout.dp_shard > 1 else line(200, 1)  # replicas are whole
        traced_profile = traced_profile.with_curve(layout, curve)
        answer = choose(Question(traced_profile, 16, devices, kind=SPEED))
    assert isinstance(answer, ChosenPlan), answer
    listed = list_options(Question(traced_profile, 16, devices))
    assert any(isinstance(option, Option) and option.fits and option.plan == answer.plan for option in listed)
