from __future__ import annotations

from dataclasses import replace

import pytest

from estimators.devices.catalogue import gpu
from estimators.devices.kind import DeviceKind, Rate
from estimators.model import MIB, Layout, ModelProfile, Plan
from estimators.peaks.envelope import Envelope, Line
from estimators.peaks.units import PassWork, Unit
from estimators.work import StepWork, Work, WorkCounter
from placement.model import Cluster, Device
from placement.planning.pipelines import Pipeline, list_pipelines

SPEED = DeviceKind("made up", {"matmul": Rate(0.0, 1e-9, 0.0)}, "made up")
PARAMS = 1000


def work(gflops: float) -> Work:
    counter = WorkCounter()
    counter.add("matmul", flops=gflops * 1e9)
    return counter.work


def unit(name: str, gflops: float, count: int = 1, num_params: int = PARAMS) -> Unit:
    """FLOPs, 1 MiB of activations and 4 KiB of output for each sample."""
    forward, backward = (PassWork(Work(), work(share * gflops)) for share in (1 / 3, 2 / 3))
    return Unit(name, num_params, 1, forward, backward, Line(MIB, 0), Line(4096, 0), count)


def model(*units: Unit) -> tuple[tuple[Unit, ...], ModelProfile]:
    num_params = sum(one.num_params * one.count for one in units)
    single = Line(0, 10 * MIB, (("activations", 0, 9 * MIB), ("scratch", 0, MIB)))
    curve = Envelope((Line(10 * MIB, 0, (("activations", 9 * MIB, 0), ("scratch", MIB, 0))),), single)
    step = StepWork(Work(), sum((one.per_sample * one.count for one in units), Work()), Work())
    state_bytes = 16 * MIB * num_params // PARAMS
    return units, ModelProfile("made up", num_params, state_bytes, {Layout(): curve}, {Layout(): step})


ENDS = unit("before", 0.0, num_params=0), unit("after", 0.0, num_params=0)
EVEN = model(ENDS[0], unit("blocks.0", 3.0, 8), ENDS[1])


def cluster(count: int, mib: int = 2**30) -> Cluster:
    return Cluster(tuple(Device(f"n/{index}", "n", index, "virtual", mib) for index in range(count)))


def listed(
    made: tuple[tuple[Unit, ...], ModelProfile],
    count: int,
    *,
    batch: int = 32,
    kind: DeviceKind | None = SPEED,
    mib: int = 2**30,
) -> list[Pipeline]:
    return list_pipelines(*made, batch=batch, cluster=cluster(count, mib), kind=kind)


def test_there_is_one_of_each_degree_and_schedule_and_the_fastest_comes_first() -> None:
    found = listed(EVEN, 4)
    names = [(one.schedule.num_ranks, one.schedule.name) for one in found]
    schedules = ["1f1b", "gpipe", "zb-h1", "interleaved", "zbv", "dualpipev"]
    assert sorted(names) == sorted((ranks, name) for ranks in (2, 4) for name in schedules)
    assert [one.seconds for one in found] == sorted(one.seconds for one in found)
    assert all(one.micro_batch * one.schedule.num_micro_batches == 32 for one in found)
    assert listed(EVEN, 4) == found


def one_of(found: list[Pipeline], name: str, num_ranks: int, *, even: bool = True) -> Pipeline:
    (one,) = [one for one in found if one.schedule.name == name and one.is_even == even and _ranks(one) == num_ranks]
    return one


def _ranks(pipeline: Pipeline) -> int:
    return pipeline.schedule.num_ranks


def test_a_step_takes_the_work_of_a_stage_and_the_known_bubble() -> None:
    one = one_of(listed(EVEN, 4), "1f1b", 4)
    assert one.plan == Plan(1, 32, pp=4) and one.cut == (2, 2, 2, 2)
    assert one.seconds == pytest.approx(2 * 3.0 * (32 + 3))
    assert one.simulation.bubble_share == pytest.approx(3 / 35)
    flops = one_of(listed(EVEN, 4, kind=None), "1f1b", 4)
    assert flops.plan == Plan(2, 16, pp=4), "FLOPs do not show what small micro-batches cost: fewer of them are tried"
    assert flops.seconds == pytest.approx(1e9 * 2 * 2 * 3.0 * (16 + 3))


def test_memory_is_states_activations_in_flight_their_inputs_and_what_a_pass_needs() -> None:
    one = one_of(listed(EVEN, 4), "1f1b", 4)
    # The ends keep activations too. The first stage has no input, but holds one micro-batch more than the second.
    first = 2 * 16 * MIB + 4 * 3 * MIB
    assert one.simulation.peak_bytes[0] == first
    assert one.prediction.peak_bytes == first + MIB and not one.prediction.parts
    assert one.prediction.reserved_mib > first // MIB


def test_only_what_ranks_can_run_has_a_plan() -> None:
    units = (ENDS[0], unit("blocks.0", 3.0, 6), unit("wide", 9.0, num_params=3 * PARAMS), ENDS[1])
    found = listed(model(*units), 2)
    assert {one.schedule.name for one in found if one.plan} == {"gpipe", "1f1b"}
    for name in ("gpipe", "1f1b"):
        even, better = one_of(found, name, 2), one_of(found, name, 2, even=False)
        assert even.plan is not None and even.cut == (3, 4) and better.plan is None
        assert better.cut in ((4, 3), (5, 2)) and better.seconds < even.seconds


def test_pipelines_that_do_not_fit_come_last_and_cuts_are_made_for_the_memory_that_is_there() -> None:
    found = listed(EVEN, 4, mib=90)
    assert [one.fits for one in found] == sorted((one.fits for one in found), reverse=True)
    assert {one.fits for one in found} == {True, False}
    roomy, tight = (one_of(listed(EVEN, 4, mib=mib), "1f1b", 4) for mib in (90, 20))
    assert roomy.fits and not tight.fits


def test_without_links_messages_take_no_time_and_on_gpus_they_take_some() -> None:
    free = listed(EVEN, 2)
    assert {one.simulation.communication_share for one in free} == {0.0}
    sent = listed(EVEN, 2, kind=replace(gpu("V100-16"), rates=SPEED.rates))
    ours, theirs = one_of(free, "1f1b", 2), one_of(sent, "1f1b", 2)
    assert theirs.seconds > ours.seconds and theirs.simulation.messages[0].end_seconds > 0


def test_ends_that_are_larger_than_a_stage_are_interlaced() -> None:
    huge = model(unit("before", 0.0, num_params=20 * PARAMS), unit("blocks.0", 3.0, 8), unit("after", 12.0))
    found = listed(huge, 4)
    interlaced = one_of(found, "interlaced", 4)
    assert interlaced.cut == (2, 2, 2, 2) and interlaced.plan is None
    assert interlaced.prediction.peak_bytes < one_of(found, "1f1b", 4).prediction.peak_bytes
    assert not [one for one in listed(EVEN, 4) if one.schedule.name == "interlaced"]


@pytest.mark.parametrize(
    ("made", "count", "batch"),
    [
        (model(unit("model", 30.0)), 4, 32),
        (model(ENDS[0], unit("blocks.0", 3.0), ENDS[1]), 4, 32),
        (EVEN, 1, 32),
        (EVEN, 4, 1),
    ],
    ids=["no blocks", "one block", "one device", "one sample"],
)
def test_where_no_pipeline_is_possible_there_is_none(
    made: tuple[tuple[Unit, ...], ModelProfile], count: int, batch: int
) -> None:
    assert listed(made, count, batch=batch) == []


def test_fewer_blocks_than_stages_leave_schedules_out() -> None:
    found = listed(model(ENDS[0], unit("blocks.0", 3.0, 3), ENDS[1]), 4)
    assert {(one.schedule.num_ranks, one.schedule.num_stages) for one in found} == {(2, 2)}
