"""Candidates get the plan that fits, or the reason why none does."""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from estimators.devices.assumed import ASSUMED_CPU
from estimators.devices.catalogue import gpu
from estimators.learning import Ending, Learned, PastAttempt
from estimators.model import Candidate, Layout
from estimators.trace import Trace
from estimators.traits import Traits
from placement.model import Cluster, Device
from scamp_service.control.executor import Demand, Unsized
from scamp_service.model import Sized
from scamp_service.sizing.sizer import ProcessSizer, _Job, _Turns
from scamp_service.sizing.tracing.trace_process import TraceFailed, TraceProcess
from scamp_service.sizing.tracing.traces import TraceCache, Tracer
from tests.sizing import FOUR_DEVICES, USER, MemoryBlobs, Sizing
from tests.waiting import until

pytestmark = [pytest.mark.usefixtures("warm_traces"), pytest.mark.full]


def traces(folder: Path) -> dict[str, int]:
    """State of the files on disk. A file that is written again has another inode, one that is read another time."""
    return {file.name: file.stat().st_ino for file in folder.glob("traces/*/*.xz")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("profiles")


@pytest.fixture(scope="module")
def blobs() -> MemoryBlobs:
    return MemoryBlobs()


@pytest.fixture(scope="module")
def sizing(folder: Path, blobs: MemoryBlobs) -> Iterator[Sizing]:
    sizer = ProcessSizer(blobs, folder)
    yield Sizing(sizer)
    sizer.close()


@pytest.fixture(scope="module")
def code(blobs: MemoryBlobs) -> str:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("mine.py", USER)
    return blobs.put(data.getvalue())


@pytest.mark.sample
def test_a_small_candidate_takes_a_part_of_one_device(sizing: Sizing) -> None:
    sized = sizing.size({"depth": 4, "width": 64, "batch": 64})
    assert isinstance(sized, Sized)
    assert (sized.plan.world_size, sized.plan.micro_batch, sized.plan.recompute) == (1, 64, False)
    assert (
        sized.prediction.predicted_bytes < sized.prediction.reserved_mib * 2**20 and sized.prediction.reserved_mib <= 48
    )
    assert "1 rank" in sized.reason


@pytest.mark.sample
def test_a_candidate_too_large_for_a_device_is_divided_with_the_same_batch(sizing: Sizing) -> None:
    sized = sizing.size({"depth": 1, "width": 768, "heads": 8, "batch": 32})
    assert isinstance(sized, Sized)
    assert sized.plan.world_size > 1
    assert sized.plan.batch == 32
    assert sized.prediction.reserved_mib <= 96


@pytest.mark.sample
def test_each_kind_of_devices_gets_a_plan_of_its_own(folder: Path, blobs: MemoryBlobs) -> None:
    kinds = {name: gpu(name) for name in ("A100-40", "T4")}
    large = [Device(f"a{n}", "a", n, "A100-40", 20_000) for n in range(2)]
    small = [Device(f"t{n}", "t", n, "T4", 2_500) for n in range(4)]
    params = {"depth": 2, "width": 3072, "heads": 8, "batch": 32}
    sizer = ProcessSizer(blobs, folder, kind_of=lambda cluster: kinds["A100-40"], kinds_of=lambda cluster: kinds)
    try:
        sizing = Sizing(sizer)
        sized = sizing.size(params, cluster=Cluster((*small, *large)))
        none = sizing.size(params, cluster=Cluster((*small[:1], *large)))
        bound = sizing.size(params, cluster=Cluster((*small, *large)), kinds=frozenset({"T4", "L4"}))
        few = sizing.size(params, cluster=Cluster((*small[:1], *large)), kinds=frozenset({"T4"}))
        absent = sizing.size(params, cluster=Cluster((*small, *large)), kinds=frozenset({"L4"}))
    finally:
        sizer.close()
    assert isinstance(sized, Sized) and isinstance(none, Sized)
    first = {choice.kind: choice for choice in reversed(sized.choices)}
    assert list(dict.fromkeys(choice.kind for choice in sized.choices)) == ["A100-40", "T4"], "the fastest first"
    assert first["A100-40"] == sized.choice and sized.plan.world_size == 1 < first["T4"].plan.world_size
    assert all(choice.prediction.reserved_mib <= 2_500 for choice in sized.choices if choice.kind == "T4")
    seconds = {kind: choice.step_seconds for kind, choice in first.items()}
    assert seconds["A100-40"] and seconds["T4"]
    assert sized.reason.startswith("on A100-40 ") and f"; on T4 {first['T4'].plan}" in sized.reason
    assert {choice.kind for choice in none.choices or (none.choice,)} == {"A100-40"}, (
        "what a kind cannot hold has no plan"
    )
    assert isinstance(bound, Sized) and bound.choice == first["T4"], "a study may leave faster devices to others"
    assert isinstance(few, Unsized) and isinstance(absent, Unsized) and few.infeasible and absent.infeasible
    assert few.offer == Cluster((*small[:1], *large)).offer, "devices that it may not use are no news"
    assert absent.reason == "the study may use L4 alone (kinds), and the cluster has A100-40 and T4"


@pytest.mark.sample
def test_the_largest_batch_is_the_one_that_the_fewest_ranks_compute_at_once(sizing: Sizing) -> None:
    params = {"depth": 4, "width": 64, "batch": "largest"}
    sized = sizing.size(params)
    assert isinstance(sized, Sized)
    assert (sized.plan.world_size, sized.plan.num_micro_batches) == (1, 1)
    assert sized.batch_reason.startswith(f"batch {sized.plan.batch}, from 1 to 1024: 1 rank computes at most ")
    larger = sizing.size({**params, "batch": sized.plan.batch * 8 // 7 + 1})
    assert isinstance(larger, Sized) and not larger.batch_reason
    assert larger.plan.num_micro_batches * larger.plan.world_size > 1, "no eighth more fits"
    again = sizing.size({**params, "batch": sized.plan.batch})
    assert isinstance(again, Sized) and again.plan == sized.plan


@pytest.mark.parametrize(
    ("bounds", "batch", "words"),
    [
        ({"largest_batch": 48}, 48, "batch 48: the largest allowed, and it fits"),
        ({"smallest_batch": 512}, 512, "batch 512, from 512 to 1024: 1 rank computes at most "),
    ],
)
def test_the_largest_batch_lies_between_its_bounds(
    sizing: Sizing, bounds: dict[str, int], batch: int, words: str
) -> None:
    sized = sizing.size({"depth": 4, "width": 64, "batch": "largest", **bounds})
    assert isinstance(sized, Sized) and sized.plan.batch == batch
    assert sized.batch_reason.startswith(words)


def test_a_candidate_too_large_for_a_device_gets_the_largest_batch_of_its_ranks(sizing: Sizing) -> None:
    sized = sizing.size({"depth": 1, "width": 768, "heads": 8, "batch": "largest"})
    assert isinstance(sized, Sized)
    assert sized.plan.world_size > 1 and 32 < sized.plan.batch < 1024
    unsized = sizing.size({"depth": 3, "width": 1536, "heads": 8, "batch": "largest"})
    assert isinstance(unsized, Unsized) and unsized.infeasible


def test_no_plan_divides_the_batch_of_a_family_whose_curve_depends_on_it(sizing: Sizing) -> None:
    small, large = {"depth": 4, "width": 64, "batch": 64}, {"depth": 1, "width": 768, "heads": 8, "batch": 32}
    words = "the gradient of head.weight changes by 9 %"
    sized, other = (sizing.size(params, traits=Traits(couples_samples=words)) for params in (small, large))
    assert isinstance(sized, Sized) and not sized.plan.layout.divides_batch
    assert isinstance(other, Unsized) or not other.plan.layout.divides_batch
    assert isinstance(other, Sized) or (other.infeasible and words in other.reason)


@pytest.mark.sample
def test_a_candidate_that_fits_on_no_plan_is_infeasible_with_the_reason(sizing: Sizing) -> None:
    unsized = sizing.size({"depth": 3, "width": 1536, "heads": 8, "batch": 8})
    assert isinstance(unsized, Unsized)
    assert unsized.infeasible and unsized.structure
    assert "more than the 96 offered: parameters " in unsized.reason and ", margin " in unsized.reason
    assert unsized.offer == FOUR_DEVICES.offer, "the verdict holds for these devices"


@pytest.mark.parametrize(
    ("params", "mib", "num_ranks", "beyond_mib"),
    [
        ({"depth": 2, "width": 64}, 1200, 1, 4 + 1),  # the margin, and what the allocator rounds up
        ({"depth": 16, "width": 768, "heads": 12}, 1700, 2, 544),  # room for NCCL
    ],
    ids=["alone", "gang"],
)
def test_on_gpus_ranks_get_what_the_allocator_must_be_given_and_room_for_nccl(
    sizing: Sizing, params: dict[str, Any], mib: int, num_ranks: int, beyond_mib: int
) -> None:
    gpus = Cluster(tuple(Device(f"n/{index}", "n", index, "NVIDIA L4", mib) for index in range(2)))
    sized = sizing.size({**params, "batch": 64}, cluster=gpus)
    assert isinstance(sized, Sized) and sized.plan.world_size == num_ranks
    # Foretold is what will be measured and learned from, the tensors.
    tensors_mib = 1.06 * sized.prediction.predicted_bytes / 2**20
    assert tensors_mib + beyond_mib <= sized.prediction.reserved_mib < tensors_mib + beyond_mib + 100


def test_what_was_learned_from_failures_changes_the_plan(sizing: Sizing) -> None:
    first = sizing.size({"depth": 4, "width": 64, "batch": 64})
    second = sizing.size({"depth": 4, "width": 64, "batch": 64}, extra=80 * 2**20)
    assert isinstance(first, Sized) and isinstance(second, Sized)
    assert first.plan != second.plan
    assert second.prediction.predicted_bytes > 80 * 2**20


MIB = 2**20


def test_what_the_family_has_learned_is_reserved_and_said(sizing: Sizing) -> None:
    small = {"depth": 4, "width": 64, "batch": 64}
    learned = Learned(Layout(), 24 * MIB, 2 * MIB, num_trials=3, num_out_of_memory=1)
    plain, raised = sizing.size(small), sizing.size(small, learned=learned)
    assert isinstance(plain, Sized) and isinstance(raised, Sized)
    assert (
        raised.plan == plain.plan and raised.prediction.predicted_bytes == plain.prediction.predicted_bytes + 24 * MIB
    )
    assert raised.prediction.reserved_mib >= plain.prediction.reserved_mib + 24
    assert (raised.prediction.extra_bytes, raised.prediction.bias_bytes, raised.learned_bytes) == (
        24 * MIB,
        2 * MIB,
        24 * MIB,
    )
    words = "; with 24.0 MiB learned from 3 trials of this family with layout single, 1 of them out of memory"
    assert raised.reason.endswith(words)
    other = sizing.size(small, learned=replace(learned, layout=Layout(dp_shard=2)))
    assert other == plain, "what two ranks need says nothing about one"


@pytest.fixture
def timing(folder: Path, blobs: MemoryBlobs, sizing: Sizing) -> Iterator[Sizing]:
    """One that knows the speed of its devices."""
    sizer = ProcessSizer(blobs, folder, kind_of=lambda cluster: ASSUMED_CPU)
    yield Sizing(sizer)
    sizer.close()


def test_the_seconds_of_a_step_are_predicted_and_corrected_by_what_the_family_took(
    sizing: Sizing, timing: Sizing
) -> None:
    small = {"depth": 4, "width": 64, "batch": 64}
    unknown, plain = sizing.size(small), timing.size(small)
    assert isinstance(unknown, Sized) and isinstance(plain, Sized)
    assert unknown.choice.step_seconds is None and "step times" not in unknown.reason
    seconds = plain.choice.step_seconds
    assert seconds is not None and 1e-3 < seconds < 1.0 and plain.choice.step_factor == 1.0
    run = PastAttempt(0, Layout(), ("virtual",), 1, 0, 2, 1, Ending.FINISHED, 1, seconds, 1.0, 1.3 * seconds)
    slow = timing.size(small, past=[replace(run, trial_id=number) for number in range(3)])
    assert isinstance(slow, Sized) and slow.plan == plain.plan
    assert (slow.choice.step_seconds, slow.choice.step_factor) == pytest.approx((1.3 * seconds, 1.3))
    assert slow.reason == plain.reason + "; step times × 1.3 as measured on 3 trials of this family (one rank)"
    gangs = [replace(run, trial_id=number, layout=Layout(dp_shard=2)) for number in range(3)]
    as_gangs = timing.size(small, past=gangs)
    assert isinstance(as_gangs, Sized) and as_gangs.choice.step_factor == pytest.approx(1.3 * ASSUMED_CPU.sharing(2))
    assert "as measured in the slowest way in which this family has run" in as_gangs.reason, "not as fast as predicted"


def test_a_failure_of_its_own_counts_where_it_asks_for_more(sizing: Sizing) -> None:
    small = {"depth": 4, "width": 64, "batch": 64}
    sized = sizing.size(small, extra=30 * MIB, learned=Learned(Layout(), 24 * MIB, num_trials=1))
    assert isinstance(sized, Sized)
    assert sized.prediction.extra_bytes == 30 * MIB
    assert sized.learned_bytes == 24 * MIB
    assert "learned" not in sized.reason


def test_what_others_needed_under_a_layout_moves_a_candidate_to_another_one(sizing: Sizing) -> None:
    large = {"depth": 1, "width": 768, "heads": 8, "batch": 32}
    plain = sizing.size(large)
    assert isinstance(plain, Sized)
    sized = sizing.size(large, learned=Learned(plain.plan.layout, 90 * MIB, num_trials=1, num_out_of_memory=1))
    assert isinstance(sized, Sized)
    assert sized.plan.layout != plain.plan.layout
    assert sized.prediction.extra_bytes == sized.learned_bytes == 0
    assert "; not added to this plan: 90.0 MiB learned from 1 trial of" in sized.reason


def test_the_learning_rate_alone_needs_no_new_trace(sizing: Sizing, folder: Path) -> None:
    first = sizing.size({"depth": 2, "width": 32, "lr": 1e-3})
    before = traces(folder)
    assert sizing.size({"depth": 2, "width": 32, "lr": 7e-4}) == first
    assert traces(folder) == before


def test_parameters_that_make_no_sense_are_infeasible(sizing: Sizing, code: str) -> None:
    assert sizing.size({"patch": 3}) == Unsized("patch must be 1, 2 or 4, got 3", infeasible=True)
    mine = {"workload": "mine.py:Mine", "code": code}
    assert sizing.size({"width": 7}, **mine) == Unsized("width must be even", infeasible=True)


def test_the_users_own_file_is_unpacked_and_traced(sizing: Sizing, code: str) -> None:
    sized = sizing.size({}, workload="mine.py:Mine", code=code)
    assert isinstance(sized, Sized)
    assert sized.plan.batch == 6


@pytest.mark.parametrize(
    ("params", "workload", "message"),
    [({"broken": True}, "mine.py:Mine", "no such model"), ({}, "mine.py:Yours", "Yours"), ({}, "none.py:Mine", "none")],
)
def test_a_workload_that_does_not_work_fails_and_is_not_infeasible(
    sizing: Sizing, code: str, params: dict[str, Any], workload: str, message: str
) -> None:
    unsized = sizing.size(params, workload=workload, code=code)
    assert isinstance(unsized, Unsized)
    assert not unsized.infeasible
    assert message in unsized.reason


@pytest.mark.parametrize("code_sha", ["unknown", "no zip"])
def test_code_that_cannot_be_had_fails_its_own_trial_only(sizing: Sizing, blobs: MemoryBlobs, code_sha: str) -> None:
    sha = blobs.put(b"this is no zip file") if code_sha == "no zip" else "0" * 64
    unsized = sizing.size({}, workload="mine.py:Mine", code=sha)
    assert isinstance(unsized, Unsized) and not unsized.infeasible
    assert isinstance(sizing.size({"depth": 4, "width": 64, "batch": 64}), Sized)


def test_a_small_candidate_does_not_wait_for_all_layouts_of_a_large_one(tmp_path: Path, blobs: MemoryBlobs) -> None:
    one_process = Sizing(ProcessSizer(blobs, tmp_path, workers=1))
    large = one_process.begin({"depth": 1, "width": 768, "heads": 1, "batch": 16})  # four traces
    small = one_process.begin({"depth": 1, "width": 16})
    one_process.end(small)
    assert large not in one_process.sizer.results()
    assert isinstance(one_process.end(large), Sized)
    one_process.sizer.close()


def test_what_is_traced_sooner_than_a_process_starts_waits_for_the_first_one(
    tmp_path: Path, blobs: MemoryBlobs
) -> None:
    patient = Sizing(ProcessSizer(blobs, tmp_path, start_seconds=600))
    trials = [patient.begin({"depth": 1, "width": width}) for width in (16, 24)]
    assert all(isinstance(patient.end(trial), Sized) for trial in trials)
    assert sum(process.pid is not None for process in patient.sizer._processes) == 1
    patient.sizer.close()


def test_candidates_that_differ_in_their_learning_rate_wait_for_one_trace(
    tmp_path: Path, blobs: MemoryBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, trace = list[Candidate](), Tracer.trace

    def noted(tracer: Tracer, process: TraceProcess, candidate: Candidate, *rest: Any) -> Trace:
        made.append(candidate)
        return trace(tracer, process, candidate, *rest)

    monkeypatch.setattr(Tracer, "trace", noted)
    eager = Sizing(ProcessSizer(blobs, tmp_path, start_seconds=0))
    trials = [eager.begin({"depth": 1, "width": 16, "lr": lr}) for lr in (1e-3, 2e-3, 3e-3)]
    assert all(isinstance(eager.end(trial), Sized) for trial in trials)
    assert len(made) == 1
    eager.sizer.close()


def in_progress(sizer: ProcessSizer) -> list[int]:
    """Trials whose traces are in progress; reading it ends those that hold up others."""
    sizer.results()
    return sorted(job.trial_id for job, _ in sizer._in_progress.values())


def test_a_study_whose_traces_wait_does_not_hold_up_another_one(
    sizing: Sizing, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = [sizing.begin({"waits": number}, workload="mine.py:Mine", code=code, study=1) for number in range(1, 5)]
    until(lambda: len(in_progress(sizing.sizer)) == 2, "two traces in progress")
    assert sizing.sizer.held_up() == {}
    monkeypatch.setattr("scamp_service.sizing.sizer.PATIENCE_SECONDS", 0.0)
    assert sizing.sizer.held_up() == dict.fromkeys(hung[2:], tuple(hung[:2]))
    monkeypatch.setattr("scamp_service.sizing.sizer.PATIENCE_SECONDS", 2.0)
    assert isinstance(sizing.size({"depth": 1, "width": 56}, study=2), Sized)
    until(lambda: len(in_progress(sizing.sizer)) == 2, "two traces in progress")  # nobody else waits
    sizing.sizer.forget(hung)  # the study was stopped
    others = [sizing.begin({"depth": 1, "width": width}, study=3) for width in (72, 80)]
    assert all(isinstance(sizing.end(trial), Sized) for trial in others)


def test_a_study_may_allow_its_traces_more_time(sizing: Sizing, code: str) -> None:
    demand = Demand(Candidate("mine.py:Mine", code, {"loops": 1}), trace_seconds=1)
    sizing.sizer.request(1000, demand, FOUR_DEVICES)
    unsized = sizing.end(1000)
    assert isinstance(unsized, Unsized) and re.search("took (more|longer) than", unsized.reason)
    assert "allow more: budget.trace_seconds: 4 in a study, --seconds 4 on the command line" in unsized.reason


def test_studies_take_turns() -> None:
    turns, demand = _Turns(), Demand(Candidate("vit_digits", None, {}))
    search: Any = None
    waiting = [
        _Job(trial, study, demand, FOUR_DEVICES, search, ()) for study in (1, 2, 3) for trial in range(study, 31, 3)
    ]
    order: list[_Job] = []
    while waiting:
        order.append(turns.next(waiting, order[-1:]))
        waiting.remove(order[-1])
    assert [job.study_id for job in order] == [1, 2, 3] * 10
    busy = [order[0]] * 2 + [order[1]]
    assert turns.next(order, busy).study_id == 3, "the only one without a trace in progress"
    assert turns.next(order[:2] * 2, busy).study_id == 2


def test_a_request_is_served_once_and_a_forgotten_one_not_at_all(sizing: Sizing) -> None:
    trial = sizing.begin({"depth": 1, "width": 24})
    sizing.sizer.request(
        trial, Demand(Candidate("vit_digits", None, {"patch": 3})), FOUR_DEVICES
    )  # no effect: it is being sized
    forgotten = sizing.begin({"depth": 1, "width": 40})
    sizing.sizer.forget([forgotten])
    assert isinstance(sizing.end(trial), Sized)
    assert isinstance(sizing.size({"depth": 1, "width": 48}), Sized)
    assert forgotten not in sizing.sizer.results()


def test_no_candidate_is_sized_for_a_cluster_that_is_not_there_yet(sizing: Sizing) -> None:
    trial = sizing.begin({"depth": 1, "width": 24}, cluster=Cluster())
    assert isinstance(sizing.size({"depth": 1, "width": 24}), Sized)
    assert trial not in sizing.sizer.results()


def test_a_restart_remembers_every_trace_and_mends_a_damaged_file(
    sizing: Sizing, folder: Path, blobs: MemoryBlobs
) -> None:
    expected = sizing.size({"depth": 4, "width": 64, "batch": 64})
    before = traces(folder)
    cache = TraceCache(folder / "traces")
    file = cache._file(cache.key(Candidate("vit_digits", None, {"depth": 4, "width": 64, "batch": 64}), Layout()), "xz")
    content = file.read_bytes()
    restarted = Sizing(ProcessSizer(blobs, folder))
    try:
        assert restarted.size({"depth": 4, "width": 64, "batch": 64}) == expected
        assert traces(folder) == before, "the trace was made again"
    finally:
        restarted.sizer.close()
    file.write_bytes(content[:-9])
    mended = Sizing(ProcessSizer(blobs, folder))
    try:
        assert mended.size({"depth": 4, "width": 64, "batch": 64}) == expected
    finally:
        mended.sizer.close()
    assert file.read_bytes() == content


def test_closing_ends_a_child_that_waits(tmp_path: Path, blobs: MemoryBlobs, code: str) -> None:
    sizer = ProcessSizer(blobs, tmp_path)
    sizer.request(1, Demand(Candidate("mine.py:Mine", code, {"waits": 1})), FOUR_DEVICES)
    child = until(lambda: sizer._processes[0].pid, "a child")
    sizer.close()
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_a_layout_that_the_host_could_not_trace_is_not_passed_over(
    tmp_path: Path, blobs: MemoryBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be the only one that fits: the candidate is sized again later, instead of being infeasible."""
    sizer = ProcessSizer(blobs, tmp_path)
    tracer = sizer._tracers[False]
    trace = tracer.trace

    def full_disk(process: Any, candidate: Any, layout: Layout, seconds: int) -> Any:
        if layout != Layout():
            raise TraceFailed("No space left on device three times", infeasible=False, may_pass=True)
        return trace(process, candidate, layout)

    monkeypatch.setattr(tracer, "trace", full_disk)
    unsized = Sizing(sizer).size({"depth": 1, "width": 768, "heads": 8, "batch": 32})
    sizer.close()
    assert isinstance(unsized, Unsized)
    assert unsized.may_pass
    assert not unsized.infeasible
