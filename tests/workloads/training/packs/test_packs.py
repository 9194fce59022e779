"""Trainings that share a process train as they do alone."""

from __future__ import annotations

import resource
import threading
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from estimators.model import MIB, Candidate, Layout, Plan
from estimators.tracing.tracer import trace
from tests.forks import in_fork
from tests.waiting import PATIENCE_SECONDS
from tests.workloads.one_rank import Collected
from tests.workloads.training.packs.unlike import CHANGES, Teaching
from workloads.sandbox.recipe import recipe_of
from workloads.training.attempt.job import TrainingJob
from workloads.training.attempt.loop import MEASURED_STEP, NonFiniteLoss
from workloads.training.faults import HostFault
from workloads.training.memory.budget import SharedLimit
from workloads.training.packs.pack import Member, Pack
from workloads.training.runtime import train

FOLDER = Path(__file__).parents[4] / "examples" / "lora"
NAME = "text_lora.py:TextLora"
UNLIKE: Sequence[Mapping[str, Any]] = (
    {"rank": 2, "lr": 0.01, "batch": 8},
    {"rank": 8, "lr": 0.003, "batch": 4, "dropout": 0.2, "seed": 5},
    {"rank": 4, "lr": 0.02, "batch": 6, "targets": "query up", "clip_norm": 0.5},
    {"rank": 1, "lr": 0.01, "batch": 8, "alpha": 32, "steps": 3, "micro_batch": 4},
)


def job_of(number: int, params: Mapping[str, Any], folder: Path, **options: Any) -> TrainingJob:
    candidate = Candidate(options.pop("name", NAME), None, {k: v for k, v in params.items() if k != "seed"})
    size = params.get("micro_batch", params["batch"])
    plan = Plan(size, params["batch"] // size)
    steps, seed = params.get("steps", 6), params.get("seed", 0)
    return TrainingJob(candidate, FOLDER, plan, seed, steps, 1, None, folder, number, None, ["loss"], **options)


def together(jobs: Sequence[TrainingJob], pack: Pack) -> tuple[list[Collected], list[Any]]:
    """The reports of these trainings in one process, and how each has ended."""
    reporters, ends = [Collected(None) for _ in jobs], list[Any](None for _ in jobs)

    def run(place: int) -> None:
        try:
            ends[place] = train(jobs[place], 0, 1, None, reporters[place], pack)
        except Exception as error:
            ends[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    return reporters, ends


def alone(job: TrainingJob) -> list[tuple[int, Mapping[str, float]]]:
    reporter = Collected(None)
    assert train(job, 0, 1, None, reporter) == "done"
    return reporter.reports


@pytest.mark.full
def test_unlike_adapters_train_together_as_they_do_alone(tmp_path: Path) -> None:
    pack = Pack()
    reporters, ends = together([job_of(n, params, tmp_path / "a") for n, params in enumerate(UNLIKE)], pack)
    assert ends == ["done"] * len(UNLIKE)
    for number, (params, reporter) in enumerate(zip(UNLIKE, reporters, strict=True)):
        expected = alone(job_of(number, params, tmp_path / "b"))
        assert len(reporter.reports) == len(expected)
        for (step, values), (expected_step, expected_values) in zip(reporter.reports, expected, strict=True):
            assert step == expected_step
            assert values == pytest.approx(dict(expected_values), abs=1e-5)
    assert pack.passes[len(UNLIKE)] > 2 * 6  # there are 6 steps: evaluations, too


HERE = Path(__file__).parent


def unlike(number: int, name: str, folder: Path, **params: Any) -> TrainingJob:
    job = job_of(number, {"batch": 8, **params}, folder, name=f"unlike.py:{name}")
    return replace(job, code_dir=HERE)


def expect_alone(reporters: Sequence[Collected], jobs: Sequence[TrainingJob], folder: Path) -> None:
    for reporter, job in zip(reporters, jobs, strict=True):
        expected = alone(replace(job, checkpoint_root=folder))
        assert [step for step, _ in reporter.reports] == [step for step, _ in expected]
        for (_, values), (_, expected_values) in zip(reporter.reports, expected, strict=True):
            assert values == pytest.approx(dict(expected_values), abs=1e-5)


@pytest.mark.full
@pytest.mark.sample
@pytest.mark.parametrize("name", ["Plain", "Odd", "Coupled", "WithBatchNorm", "Noisy", "Dropped", "Merging", "Bert"])
def test_whatever_a_model_does_its_curve_is_the_one_alone(name: str, tmp_path: Path) -> None:
    pack = Pack()
    options = {"rank": 4} if name == "Bert" else {}
    jobs = [unlike(n, name, tmp_path / "a", lr=lr, **options) for n, lr in enumerate((0.1, 0.01))]
    reporters, ends = together(jobs, pack)
    assert ends == ["done", "done"]
    expect_alone(reporters, jobs, tmp_path / "b")
    if name in ("Plain", "Odd", "Bert"):
        assert pack.passes[2] >= 4


@pytest.mark.parametrize(
    "params", [({"backbone": 1}, {"backbone": 2}), ({"classes": 4}, {"classes": 6})], ids=["weights", "heads"]
)
def test_models_that_differ_outside_or_inside_of_what_trains(params: Any, tmp_path: Path) -> None:
    jobs = [unlike(n, "Plain", tmp_path / "a", **each) for n, each in enumerate(params)]
    reporters, ends = together(jobs, Pack())
    assert ends == ["done", "done"]
    expect_alone(reporters, jobs, tmp_path / "b")


def test_a_difference_that_nothing_shows_is_found_by_comparing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [unlike(n, "Hidden", tmp_path / "a", factor=factor) for n, factor in enumerate((1.0, 2.0))]
    reporters, ends = together(jobs, Pack())
    assert ends == ["done", "done"]
    expect_alone(reporters, jobs, tmp_path / "b")
    assert "would compute something else with them" in capsys.readouterr().out


@pytest.mark.full
@pytest.mark.sample
@pytest.mark.parametrize("how", CHANGES)
def test_what_a_training_does_to_its_model_is_seen(how: str, tmp_path: Path) -> None:
    pack = Pack()
    params: list[dict[str, Any]] = [{"change": how}, {"lr": 0.01}, {"lr": 0.03}]
    jobs = [unlike(n, "Changing", tmp_path / "a", steps=9, **each) for n, each in enumerate(params)]
    reporters, ends = together(jobs, pack)
    is_lost = [isinstance(end, HostFault) for end in ends]
    assert is_lost == {"weights": [True, True, True], "buffer behind the back": [True, False, False]}.get(
        how, [False, False, False]
    ), ends
    for reporter, job, lost in zip(reporters, jobs, is_lost, strict=True):
        expected = alone(replace(job, checkpoint_root=tmp_path / "b"))
        assert len(reporter.reports) in (5, 6) if lost else len(reporter.reports) == len(expected)
        for (_, values), (_, expected_values) in zip(reporter.reports, expected, strict=False):
            assert values == pytest.approx(dict(expected_values), abs=1e-5)
    assert pack.passes[3] >= 2


ALONE_BECAUSE = {
    "Checkpointed": "computes a part of its forward pass again",
    "KeptByHook": "a hook of 0.2 would get the samples of all",
    "Penalty": "depends on parameters by something else than what the model returns",
}


@pytest.mark.parametrize("name", ["InTheMiddle", "TwoNames", "TwoPasses", "Configured", *ALONE_BECAUSE])
def test_losses_of_several_passes_or_of_more_than_the_output_are_those_alone(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack = Pack()
    jobs = [unlike(n, name, tmp_path / "a", lr=lr, steps=9) for n, lr in enumerate((0.1, 0.01))]
    reporters, ends = together(jobs, pack)
    words = "\n".join([capsys.readouterr().out, *map(str, ends)])
    if why := ALONE_BECAUSE.get(name, ""):
        assert why in words and all(end == "done" or isinstance(end, HostFault) for end in ends)
    else:
        assert ends == ["done", "done"] and pack.passes[2] > (0 if name == "TwoNames" else 9)
    for reporter, job, end in zip(reporters, jobs, ends, strict=True):
        expected = alone(replace(job, checkpoint_root=tmp_path / "b"))
        assert end != "done" or len(reporter.reports) == len(expected)
        for (_, values), (_, expected_values) in zip(reporter.reports, expected, strict=False):
            assert values == pytest.approx(dict(expected_values), abs=1e-5)


def test_a_layer_may_begin_to_train_in_the_step_that_is_measured(tmp_path: Path) -> None:
    params: list[dict[str, Any]] = [{"change": "unfrozen", "after": MEASURED_STEP}, {"lr": 0.01}]
    jobs = [unlike(n, "Changing", tmp_path / "a", **each) for n, each in enumerate(params)]
    reporters, ends = together(jobs, Pack())
    assert ends == ["done", "done"]
    expect_alone(reporters, jobs, tmp_path / "b")


@pytest.mark.parametrize(("fails", "error"), [("nan", NonFiniteLoss), ("error", ArithmeticError)])
def test_what_fails_one_does_not_reach_the_others(fails: str, error: type[Exception], tmp_path: Path) -> None:
    params: list[dict[str, Any]] = [{}, {"fails": fails}, {"lr": 0.5}]
    jobs = [unlike(n, "Diverging", tmp_path / "a", **each) for n, each in enumerate(params)]
    reporters, ends = together(jobs, Pack())
    assert isinstance(ends[1], error) and [ends[0], ends[2]] == ["done", "done"]
    expect_alone([reporters[0], reporters[2]], [jobs[0], jobs[2]], tmp_path / "b")


def test_one_that_ends_makes_room_for_another_in_the_same_process(tmp_path: Path) -> None:
    pack = Pack()
    short = [unlike(n, "Plain", tmp_path / "a", steps=3, lr=0.1 * (n + 1)) for n in range(3)]
    long = unlike(9, "Plain", tmp_path / "a", steps=40)
    reporter, late = Collected(None), list[Any]()
    thread = threading.Thread(target=train, args=(long, 0, 1, None, reporter, pack))
    thread.start()
    for job in short:
        (after,), ends = together([job], pack)
        assert ends == ["done"]
        late.append(after)
    thread.join(PATIENCE_SECONDS)
    expect_alone([reporter, *late], [long, *short], tmp_path / "b")


def test_frozen_weights_are_there_once(tmp_path: Path) -> None:
    models: list[Any] = []
    pack = Pack()
    attach = Member.attach

    def noted(self: Member, model: Any) -> None:
        attach(self, model)
        models.append(model)

    with mock.patch.object(Member, "attach", noted):
        together([unlike(n, "Plain", tmp_path, lr=0.1) for n in range(3)], pack)
    frozen = [{p.data_ptr() for p in model.parameters() if not p.requires_grad} for model in models]
    assert frozen[0] == frozen[1] == frozen[2]
    assert len({p.data_ptr() for model in models for p in model.parameters() if p.requires_grad}) == 6


@pytest.mark.parametrize(("teaches", "num_shared"), [(False, 272), (True, 0)])
def test_weights_that_follow_others_are_not_shared(teaches: bool, num_shared: int) -> None:
    workload = Teaching({"teaches": teaches})
    assert trace(recipe_of(workload), Layout(), 4).frozen_bytes == 4 * num_shared


def test_the_limit_of_the_process_is_the_sum_of_budgets_and_is_gone_with_the_last_member(tmp_path: Path) -> None:
    assert in_fork(lambda: _limits(str(tmp_path))) == [True, True, True]


def _limits(folder: str) -> list[bool]:
    """Whether the limit grew with the second member, was there for both, and is gone in the end."""
    seen: list[int] = []
    part = SharedLimit.part

    def noted(self: SharedLimit, *arguments: Any) -> Any:
        @contextmanager
        def within() -> Any:
            with part(self, *arguments):
                seen.append(resource.getrlimit(resource.RLIMIT_DATA)[0])
                yield

        return within()

    with mock.patch.object(SharedLimit, "part", noted):
        jobs = [
            replace(unlike(n, "Plain", Path(folder), lr=0.1), budget_bytes=64 * MIB, shared_bytes=2 * MIB)
            for n in range(2)
        ]
        _, ends = together(jobs, Pack())
    assert ends == ["done", "done"], ends
    gone = resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY
    return [seen[1] - seen[0] == 62 * MIB, all(limit != resource.RLIM_INFINITY for limit in seen), gone]
