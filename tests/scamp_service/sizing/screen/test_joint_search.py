"""Which layouts get formulas, and which candidates are traced. Nothing is traced here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from estimators.model import Candidate, Divisions, Layout
from estimators.profile import ModelProfile
from estimators.work import StepWork, Work
from placement.planning.question import Question
from scamp_service.model import Json
from scamp_service.sizing.estimate import equal_devices
from scamp_service.sizing.screen.blueprints import NoBlueprints
from scamp_service.sizing.screen.groups import FormulaGroup, Task
from scamp_service.sizing.screen.joint_search import Formulas, JointSearch, LeftOut, OpenCandidate
from scamp_service.sizing.tracing.options import OneBlob, TracedWorkload
from scamp_service.sizing.tracing.trace_process import TraceFailed
from scamp_service.sizing.tracing.traces import Tracer

CLUSTER = equal_devices(4, 100)
PROFILE = ModelProfile("s", 1, 4, {}, {Layout(): StepWork(Work(), Work(), Work())})


class NoExamples:
    """A finder that finds no formulas, and remembers for which kinds of layouts it was asked."""

    num_examples = num_checked = 0

    def __init__(self) -> None:
        self.asked: list[Task] = []

    def plain(self, candidates: Mapping[int, Json]) -> list[tuple[FormulaGroup, str]]:
        return []

    def find(self, tasks: Sequence[Task]) -> list[NoBlueprints]:
        self.asked += tasks
        return [NoBlueprints("none") for _ in tasks]


def search(folder: Path, finder: Any = None, pool: Any = None) -> JointSearch:
    return JointSearch(TracedWorkload("w", None, Tracer(OneBlob(b""), folder, 60), pool), finder, CLUSTER, None)


def asking(formulas: Formulas, num: int) -> list[OpenCandidate]:
    return [
        OpenCandidate(index, formulas.members[index], Question(PROFILE, 8, CLUSTER), formulas) for index in range(num)
    ]


def group(profiles: Sequence[ModelProfile]) -> Formulas:
    everyone: list[Json] = [{"width": width} for width in range(1, len(profiles) + 1)]
    return Formulas(FormulaGroup({}, ("width",), tuple(range(len(profiles)))), None, everyone, list(profiles))


@pytest.mark.parametrize("num_asking", [1, 3, 4])
def test_formulas_are_looked_for_where_two_in_a_hundred_candidates_ask(num_asking: int, tmp_path: Path) -> None:
    finder, sharded, formulas = NoExamples(), Layout(dp_shard=4), group([PROFILE] * 200)
    search(tmp_path, finder).find([(candidate, sharded) for candidate in asking(formulas, num_asking)])
    is_found = num_asking >= 4
    assert [task.layout_kind for task in finder.asked] == ([Layout(dp_shard=2)] if is_found else [])
    assert (sharded in formulas.left_out) == (not is_found)
    assert Layout(pp=2, num_micro_batches=2) in formulas.left_out


def test_layouts_without_formulas_by_nature_are_left_out_and_of_the_others_whole_kinds() -> None:
    left_out = LeftOut({Layout(dp_shard=2)})
    assert Layout(pp=2, num_micro_batches=2) in left_out and Layout(dp_replicate=2, zero1=True) in left_out
    assert Layout(dp_shard=16, accumulate=True) in left_out
    assert Layout() not in left_out and Layout(dp_shard=2, tp=2) not in left_out


def test_formulas_of_tensor_parallel_ranks_come_from_members_that_can_be_divided(tmp_path: Path) -> None:
    divisible = [number % 3 == 0 for number in range(30)]
    profiles = [replace(PROFILE, divisions=Divisions(most_parts=4 if even else 3)) for even in divisible]
    finder, formulas = NoExamples(), group(profiles)
    search(tmp_path, finder).find([(candidate, Layout(tp=4)) for candidate in asking(formulas, 5)])
    (task,) = finder.asked
    assert [member["width"] for member in task.members] == [index + 1 for index, even in enumerate(divisible) if even]
    assert set(task.most_parts) == {4} and task.num_devices == 4
    assert [point["tp"] for point in task.points] == [4] * 5


class Processes:
    """A pool whose processes trace at once."""

    def submit(self, work: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(None))
        except TraceFailed as failed:
            future.set_exception(failed)
        return future


def test_equal_candidates_are_traced_once_and_a_refusal_is_the_answer_of_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced: list[tuple[Any, Layout]] = []

    def trace(tracer: Tracer, process: Any, candidate: Candidate, layout: Layout) -> Any:
        traced.append((candidate.params["width"], layout))
        if candidate.params["width"] == 3:
            raise TraceFailed("width must be even", infeasible=True)
        return SimpleNamespace(of=candidate.params["width"], layout=layout)

    monkeypatch.setattr(Tracer, "trace", trace)
    joint = search(tmp_path, pool=Processes())
    plain, sharded = Layout(), Layout(dp_shard=2)
    questions: list[tuple[dict[str, Any], Layout]]
    questions = [({"width": 2}, plain), ({"width": 3}, plain), ({"width": 2}, sharded), ({"width": 3}, plain),
              ({"width": 2, "lr": 0.1}, plain), ({"width": 2, "lr": 0.2}, plain)]  # fmt: skip
    answers: list[Any] = joint._traces(questions)
    assert [answer if isinstance(answer, str) else (answer.of, answer.layout) for answer in answers] == [
        (2, plain),
        "width must be even",
        (2, sharded),
        "width must be even",
        (2, plain),
        (2, plain),
    ]
    assert len(traced) == 4 and answers[4] is answers[5], "candidates that differ in rates alone are equal"
    assert joint.has_failed
