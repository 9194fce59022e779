"""The best pipeline of each degree and schedule is listed, with the seconds and bytes of its stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimators.constraints import Limit, Name, PlanConstraints
from estimators.devices.catalogue import gpu
from estimators.devices.kind import DeviceKind, Rate
from estimators.model import MIB, Divisions, Layout, Plan
from estimators.peaks.envelope import Envelope, Line
from estimators.peaks.units import PassWork, Unit
from estimators.pipelining.passes import FORWARD
from estimators.profile import ModelProfile
from estimators.work import StepWork, Work, WorkCounter
from placement.exact import pipelines
from placement.exact.pipelines import list_pipelines, order
from placement.model import Cluster, Device
from placement.option import Option
from placement.pipelining.simulator import simulate_step
from placement.planning import question as planning
from placement.refinement import Pipeline

SPEED = DeviceKind("made up", {"matmul": Rate(0.0, 1e-9, 0.0)}, "made up")
PARAMS = 1000


def work(gflops: float) -> Work:
    counter = WorkCounter()
    counter.add("matmul", flops=gflops * 1e9)
    return counter.work


def unit(name: str, gflops: float, count: int = 1, num_params: int = PARAMS, forward_share: float = 1 / 3) -> Unit:
    """FLOPs, 1 MiB of activations and 4 KiB of output for each sample."""
    forward, backward = (PassWork(Work(), work(share * gflops)) for share in (forward_share, 1 - forward_share))
    return Unit(name, num_params, 1, forward, backward, Line(MIB, 0), Line(4096, 0), count)


def model(*units: Unit) -> ModelProfile:
    num_params = sum(part.num_params * part.count for part in units)
    single = Line(0, 10 * MIB, (("activations", 0, 9 * MIB), ("scratch", 0, MIB)))
    curve = Envelope((Line(10 * MIB, 0, (("activations", 9 * MIB, 0), ("scratch", MIB, 0))),), single)
    step = StepWork(Work(), sum((part.per_sample * part.count for part in units), Work()), Work())
    state_bytes = 16 * MIB * num_params // PARAMS
    return ModelProfile("made up", num_params, state_bytes, {Layout(): curve}, {Layout(): step}, units=units)


ENDS = unit("before", 0.0, num_params=0), unit("after", 0.0, num_params=0)
EVEN = model(ENDS[0], unit("blocks.0", 3.0, 8), ENDS[1])


def cluster(count: int, mib: int = 2**30) -> Cluster:
    return Cluster(tuple(Device(f"n/{index}", "n", index, "virtual", mib) for index in range(count)))


def listed(
    profile: ModelProfile,
    count: int,
    *,
    batch: int = 32,
    kind: DeviceKind | None = SPEED,
    mib: int = 2**30,
) -> list[Option]:
    return list_pipelines(planning.Question(profile, batch, cluster(count, mib), kind))


def drawn(option: Option) -> Pipeline:
    assert option.refinement.pipeline is not None
    return option.refinement.pipeline


def name_of(option: Option) -> str:
    return drawn(option).schedule.name


def test_there_is_one_of_each_degree_and_schedule_and_the_fastest_comes_first() -> None:
    options = listed(EVEN, 4)
    names = [(option.plan.world_size, name_of(option)) for option in options]
    schedules = ["1f1b", "gpipe", "zb-h1", "interleaved", "zbv", "dualpipev"]
    assert set(names) == {(ranks, name) for ranks in (2, 3, 4) for name in schedules}
    seconds = [option.comparable_seconds for option in options]
    assert seconds == sorted(seconds)
    assert all(
        option.plan.micro_batch * drawn(option).schedule.num_micro_batches == option.plan.batch == 32
        for option in options
    )
    assert listed(EVEN, 4) == options


def one_of(options: list[Option], name: str, num_ranks: int, *, even: bool = True) -> Option:
    of_name = [option for option in options if name_of(option) == name and option.plan.world_size == num_ranks]
    (option,) = [option for option in of_name if drawn(option).is_even == even]
    return option


def test_a_step_takes_the_work_of_a_stage_and_the_known_bubble() -> None:
    option = one_of(listed(EVEN, 4), "1f1b", 4)
    assert option.trained == Plan(1, 32, pp=4) and drawn(option).cut == (2, 2, 2, 2)
    assert option.seconds == pytest.approx(2 * 3.0 * (32 + 3))
    assert option.bubble_share == pytest.approx(3 / 35)
    flops = one_of(listed(EVEN, 4, kind=None), "1f1b", 4)
    assert flops.trained == Plan(2, 16, pp=4), "FLOPs do not show what small micro-batches cost: fewer are tried"
    assert flops.seconds == pytest.approx(1e9 * 2 * 2 * 3.0 * (16 + 3))


@pytest.mark.parametrize("share", [0.2, 1 / 3, 0.5])
def test_forward_and_backward_passes_take_the_time_of_their_own_work(share: float) -> None:
    profile = model(ENDS[0], unit("blocks.0", 3.0, 8, forward_share=share), ENDS[1])
    option = one_of(listed(profile, 2), "gpipe", 2)
    for interval in drawn(option).simulation.computing:
        assert interval.action is not None
        expected = 4 * 3.0 * option.plan.micro_batch * (share if interval.action.kind == FORWARD else 1 - share)
        assert interval.end_seconds - interval.start_seconds == pytest.approx(expected)


@dataclass(frozen=True)
class Question:
    """A question about a small model: GFLOPs, parameters and share of the forward pass of each unit."""

    units: list[tuple[int, int, float]]
    count: int
    batch: int
    mib: int
    speed: str = "plain"
    factor: float = 1.0

    def ask(self) -> list[Option]:
        numbered = enumerate(self.units)
        units = [unit(f"blocks.{n}", work, 1, params * PARAMS, share) for n, (work, params, share) in numbered]
        return listed(model(*units), self.count, batch=self.batch, kind=self._kind, mib=self.mib)

    @property
    def _kind(self) -> DeviceKind | None:
        if self.speed == "unknown":
            return None
        per_flop = 1e-13 if self.speed == "bound by links" else 1e-9
        links = None if self.speed == "plain" else gpu("V100-16").links
        return DeviceKind("made up", {"matmul": Rate(0.0, self.factor * per_flop, 0.0)}, "made up", links=links)


QUESTIONS = st.builds(
    Question,
    st.lists(
        st.tuples(st.integers(1, 20), st.integers(0, 5), st.sampled_from([0.25, 1 / 3, 0.5])), min_size=4, max_size=11
    ),
    st.sampled_from([2, 4]),
    st.sampled_from([4, 12, 32]),
    st.sampled_from([20, 60, 100, 200, 500, 2**30]),
    st.sampled_from(["plain", "unknown", "with links", "bound by links"]),
)


def simulating_everything(question: Question) -> list[Option]:
    with (
        mock.patch.object(pipelines, "least_seconds", return_value=0.0),
        mock.patch.object(pipelines, "least_bytes", return_value=0),
    ):
        return question.ask()


@settings(deadline=None, max_examples=30)
@given(QUESTIONS, st.sampled_from([1, 8]))
def test_what_is_left_out_would_not_have_been_listed(question: Question, many_ranks: int) -> None:
    with mock.patch.object(pipelines, "MANY_RANKS", many_ranks):
        assert question.ask() == simulating_everything(question)


@pytest.mark.full
@settings(deadline=None, max_examples=30)
@given(QUESTIONS)
def test_on_many_ranks_the_best_of_all_and_of_those_that_ranks_can_train_are_listed(question: Question) -> None:
    every = question.ask()
    with mock.patch.object(pipelines, "MANY_RANKS", 1), mock.patch.object(pipelines, "_numbers", _all_numbers):
        few = question.ask()
    for num_ranks in (2, 4):
        ours, theirs = ([option for option in option if option.plan.world_size == num_ranks] for option in (few, every))
        assert len(ours) <= 2 and bool(ours) == bool(theirs)
        if theirs:
            assert order(ours[0]) == order(theirs[0])
            trained = [[order(option) for option in options if option.trained] for options in (ours, theirs)]
            assert trained[0][:1] == trained[1][:1]


def _all_numbers(candidate: Any, num_ranks: int) -> list[int]:
    with mock.patch.object(pipelines, "MANY_RANKS", 8):
        return _NUMBERS(candidate, num_ranks)


_NUMBERS: Callable[[Any, int], list[int]] = pipelines._numbers


@pytest.mark.full
def test_few_pipelines_of_many_ranks_are_simulated() -> None:
    question = Question([(3, 1, 1 / 3)] * 34, 16, 32, 2**30)
    counted = []
    for ask in (question.ask, lambda: simulating_everything(question)):
        with mock.patch.object(pipelines, "simulate_step", side_effect=simulate_step) as simulations:
            best = ask()[0]
        counted.append((simulations.call_count, best))
    (few, best), (every, same) = counted
    assert few <= every / 2
    assert best == same


@settings(deadline=None, max_examples=20)
@given(QUESTIONS, st.sampled_from([2.0, 0.125]))
def test_a_slower_device_takes_longer_for_the_same_pipelines(question: Question, factor: float) -> None:
    ours, theirs = (replace(question, speed="plain", factor=speed_factor).ask() for speed_factor in (1.0, factor))
    same = [
        [(drawn(option).schedule, drawn(option).cut, option.fits) for option in options] for options in (ours, theirs)
    ]
    assert same[0] == same[1]
    seconds = [[drawn(option).simulation.makespan_seconds for option in options] for options in (ours, theirs)]
    assert [factor * second for second in seconds[0]] == seconds[1]


@pytest.mark.full
@settings(deadline=None, max_examples=30)
@given(QUESTIONS, st.sampled_from([1.2, 2.0, 5.0]))
def test_more_memory_makes_the_best_pipeline_no_slower(question: Question, factor: float) -> None:
    """Except that cuts are found by formulas, which may be some percent off: see ``cuts``."""
    less, more = question.ask(), replace(question, mib=int(factor * question.mib)).ask()
    if less and less[0].fits:
        assert more[0].fits and more[0].comparable_seconds <= 1.08 * less[0].comparable_seconds


def test_memory_is_states_activations_in_flight_their_inputs_and_what_a_pass_needs() -> None:
    option = one_of(listed(EVEN, 4), "1f1b", 4)
    # The ends keep activations too. The first stage has no input, but holds one micro-batch more than the second.
    first = 2 * 16 * MIB + 4 * 3 * MIB
    assert drawn(option).simulation.peak_bytes[0] == first
    assert option.prediction.peak_bytes == first + MIB and not option.is_traced
    assert option.prediction.reserved_mib > first // MIB


def test_only_what_ranks_can_run_is_trained() -> None:
    units = (ENDS[0], unit("blocks.0", 3.0, 6), unit("wide", 9.0, num_params=3 * PARAMS), ENDS[1])
    options = listed(model(*units), 2)
    assert {name_of(option) for option in options if option.trained} == {name_of(option) for option in options} - {
        "interlaced"
    }
    for name in ("gpipe", "1f1b"):
        even, better = one_of(options, name, 2), one_of(options, name, 2, even=False)
        assert even.trained is not None
        assert better.trained is not None
        assert even.trained.cut == ()
        assert drawn(even).cut == (3, 4) and drawn(better).cut == better.trained.cut
        assert drawn(better).cut in ((4, 3), (5, 2)) and better.comparable_seconds < even.comparable_seconds


def test_pipelines_that_do_not_fit_come_last_and_cuts_are_made_for_the_memory_that_is_there() -> None:
    options = listed(EVEN, 4, mib=90)
    assert [option.fits for option in options] == sorted((option.fits for option in options), reverse=True)
    assert {option.fits for option in options} == {True, False}
    roomy, tight = (one_of(listed(EVEN, 4, mib=mib), "1f1b", 4) for mib in (90, 20))
    assert roomy.fits and not tight.fits


def test_without_links_messages_take_no_time_and_on_gpus_they_take_some() -> None:
    free = listed(EVEN, 2)
    assert {option.communication_share for option in free} == {0.0}
    sent = listed(EVEN, 2, kind=replace(gpu("V100-16"), rates=SPEED.rates))
    ours, theirs = one_of(free, "1f1b", 2), one_of(sent, "1f1b", 2)
    assert ours.seconds is not None
    assert theirs.seconds is not None
    assert theirs.seconds > ours.seconds
    assert drawn(theirs).simulation.messages[0].end_seconds > 0


def test_ends_that_are_larger_than_a_stage_are_interlaced() -> None:
    huge = model(unit("before", 0.0, num_params=20 * PARAMS), unit("blocks.0", 3.0, 8), unit("after", 12.0))
    options = listed(huge, 4)
    interlaced = one_of(options, "interlaced", 4)
    assert drawn(interlaced).cut == (2, 2, 2, 2) and interlaced.trained is None
    assert interlaced.prediction.peak_bytes < one_of(options, "1f1b", 4).prediction.peak_bytes
    assert not [option for option in listed(EVEN, 4) if name_of(option) == "interlaced"]


@pytest.mark.parametrize(
    ("profile", "count", "batch"),
    [
        (model(unit("model", 30.0)), 4, 32),
        (model(ENDS[0], unit("blocks.0", 3.0), ENDS[1]), 4, 32),
        (EVEN, 1, 32),
        (EVEN, 4, 1),
    ],
    ids=["no blocks", "one block", "one device", "one sample"],
)
def test_where_no_pipeline_is_possible_there_is_none(profile: ModelProfile, count: int, batch: int) -> None:
    assert listed(profile, count, batch=batch) == []


def hinted(*limits: tuple[Name, int, int | None]) -> ModelProfile:
    constraints = tuple(Limit(name, least, most, "hint", "here") for name, least, most in limits)
    return replace(EVEN, divisions=Divisions(constraints=PlanConstraints(constraints)))


def test_hints_limit_the_stages_and_the_micro_batches() -> None:
    assert {option.plan.world_size for option in listed(hinted(("pp", 4, 4)), 8)} == {4}
    for num in (2, 4, 32):
        options = listed(hinted(("pp", 2, None), ("micro_batches", num, num)), 2)
        assert {option.plan.num_micro_batches for option in options} == {num}
    assert listed(hinted(("shares", 2, None)), 4) == listed(hinted(("tp", 2, None)), 4) == []


def test_fewer_blocks_than_stages_leave_schedules_out() -> None:
    options = listed(model(ENDS[0], unit("blocks.0", 3.0, 3), ENDS[1]), 4)
    assert {(option.plan.world_size, drawn(option).schedule.num_stages) for option in options} == {(2, 2), (3, 3)}
