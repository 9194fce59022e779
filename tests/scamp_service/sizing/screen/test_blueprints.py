"""How examples are asked for and formulas checked and kept. Answers of trace processes are made up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from estimators.model import Layout
from estimators.scaling.formula import PARTS, RANKS, SAMPLES, Monomial
from scamp_service.model import Json
from scamp_service.sizing.screen import blueprints
from scamp_service.sizing.screen.blueprints import AT_ONCE, BlueprintFinder, Blueprints, NoBlueprints, depth_of
from scamp_service.sizing.screen.groups import FormulaGroup, Task
from scamp_service.sizing.tracing.options import OneBlob, TracedWorkload
from scamp_service.sizing.tracing.trace_process import TraceFailed
from scamp_service.sizing.tracing.traces import Tracer

MEMBERS = [{"width": 8 * width, "depth": 2 + width % 7} for width in range(1, 30)]
GROUP = FormulaGroup({"lr": 1}, ("depth", "width"), tuple(range(len(MEMBERS))))


class Finder(BlueprintFinder):
    """Its trace processes answer as told: with a value, or by raising an error."""

    def __init__(self, folder: Path, answer: Callable[[str, Json], Any], num_processes: int = 2) -> None:
        pool: Any = SimpleNamespace(num_processes=num_processes, start=lambda: None)
        super().__init__(TracedWorkload("w", None, Tracer(OneBlob(b""), folder, 60), pool))
        self._answer = answer
        self.asked: list[tuple[str, Json]] = []
        self.futures: list[Future[Json]] = []

    def _ask(self, request_kind: str, request: Json) -> Future[Json]:
        self.asked.append((request_kind, request))
        future: Future[Json] = Future()
        self.futures.append(future)
        try:
            if (answer := self._answer(request_kind, request)) is not None:
                future.set_result(answer)
        except TraceFailed as failed:
            future.set_exception(failed)
        return future


def task(layout_kind: Layout | None = None, points: Sequence[Json] = ()) -> Task:
    return Task(GROUP, layout_kind or Layout(), MEMBERS, [4] * len(MEMBERS), "depth", 16, points)


def refuse(request_kind: str, request: Json) -> Any:
    raise TraceFailed("first line\nsecond line", infeasible=True)


@pytest.mark.parametrize("num_processes", [1, 2, 3, 4])
def test_examples_are_dealt_to_all_processes_a_few_at_once_and_each_is_asked_for_once(
    num_processes: int, tmp_path: Path
) -> None:
    finder, asked_task = Finder(tmp_path, refuse, num_processes), task(Layout(dp_shard=2, tp=2))
    finder.find([asked_task])
    chunks = [request["points"] for _, request in finder.asked]
    assert max(map(len, chunks)) <= AT_ONCE and len(chunks) % num_processes == 0
    assert max(map(len, chunks)) - min(map(len, chunks)) <= 1
    points = [point for chunk in chunks for point in chunk]
    examples = asked_task.examples()
    assert [point["params"]["width"] for point in points] == [example["width"] for example in examples]
    assert [point["micro_batch"] for point in points] == [example[SAMPLES] for example in examples]
    assert [(point["layout"]["dp_shard"], point["layout"]["tp"]) for point in points] == [
        (example[RANKS], example[PARTS]) for example in examples
    ]
    assert all(point["params"].keys() == {"width", "depth"} for point in points)


def test_examples_that_were_begun_are_not_asked_for_again(tmp_path: Path) -> None:
    finder = Finder(tmp_path, refuse)
    finder.begin(task())
    begun = len(finder.asked)
    finder.find([task()])
    assert len(finder.asked) == begun > 0
    finder.find([task()])
    assert len(finder.asked) == 2 * begun, "a failure is not kept"


def test_a_failed_example_is_a_reason_in_one_line_and_the_others_are_not_traced(tmp_path: Path) -> None:
    left = iter([refuse])

    def answer(request_kind: str, request: Json) -> Any:
        return next(left, lambda *_: None)(request_kind, request)

    finder = Finder(tmp_path, answer)
    (result,) = finder.find([task()])
    assert result == NoBlueprints("first line second line")
    assert len(finder.futures) > 1 and all(future.cancelled() for future in finder.futures[1:])


def blueprint_of(*, says: int) -> Any:
    """A blueprint that predicts the same peak for all, if it fits the examples."""

    def all_of(points: Any) -> Any:
        return np.ones(len(points[SAMPLES]), dtype=bool)

    curve = SimpleNamespace(peak_bytes=lambda micro_batch: says)
    costs = SimpleNamespace(curve=lambda index: curve)
    return SimpleNamespace(predicts=all_of, covers=all_of, costs=lambda points: costs, model=None)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Files of the blueprints that were kept."""
    files: list[Path] = []
    monkeypatch.setattr(blueprints, "fit_blueprint", lambda points, examples: blueprint_of(says=1000))
    monkeypatch.setattr(blueprints, "_EXAMPLE", SimpleNamespace(validate_python=lambda value: value))
    monkeypatch.setattr(
        blueprints, "_BLUEPRINT", SimpleNamespace(dump_json=lambda blueprint: b"", validate_json=_damaged)
    )
    monkeypatch.setattr(blueprints, "write_atomically", lambda file, data: files.append(file))
    return files


def _damaged(data: bytes) -> Any:
    raise ValueError


def traced(peak: int) -> Callable[[str, Json], Any]:
    def answer(request_kind: str, request: Json) -> Any:
        if request_kind == "peak":
            return {"peak": peak}
        return {"examples": [({}, {}) for _ in request["points"]]}

    return answer


def test_formulas_are_kept_when_full_traces_agree(tmp_path: Path, kept: list[Path]) -> None:
    finder = Finder(tmp_path, traced(1000))
    (result,) = finder.find([task()])
    assert isinstance(result, Blueprints)
    assert len(set(kept)) == 2
    assert (finder.num_checked, finder.num_examples > 0) == (2, True)


def test_of_the_formulas_of_gangs_the_longer_log_is_checked(tmp_path: Path, kept: list[Path]) -> None:
    finder = Finder(tmp_path, traced(1000))
    finder.find([task(Layout(dp_shard=2))])
    (request,) = [request for kind, request in finder.asked if kind == "peak"]
    assert request["layout"]["accumulate"]
    assert request["layout"]["dp_shard"] > 1
    assert len(set(kept)) == 2


def test_formulas_that_are_wrong_by_a_byte_are_not_kept(tmp_path: Path, kept: list[Path]) -> None:
    (result,) = Finder(tmp_path, traced(1001)).find([task()])
    assert isinstance(result, NoBlueprints) and kept == []
    assert "needs 1,001 bytes, but its blueprint says 1,000" in result.reason


class Deep(BlueprintFinder):
    """Its trace processes would leave out blocks where there are more than four."""

    def _submit_examples(self, layout_kind: Layout, points: Sequence[Json]) -> Future[Json]:
        answer: Future[Json] = Future()
        seen = [{"is_whole": point["layers"] <= 4, "num_blocks": point["layers"]} for point in points]
        answer.set_result({"examples": [(example, {}) for example in seen]})
        return answer


def test_the_number_of_blocks_is_found_though_the_largest_candidate_has_few(tmp_path: Path) -> None:
    members = [{"layers": 3, "width": 64, "heads": 8}, {"layers": 9, "width": 32, "heads": 2}]
    group = FormulaGroup({}, ("heads", "layers", "width"), (0, 1))
    pool: Any = SimpleNamespace()
    finder = Deep(TracedWorkload("w", None, Tracer(OneBlob(b""), tmp_path, 60), pool))
    assert finder.depth(group, members) == "layers"
    assert finder.depth(group, [{**member, "layers": 2} for member in members]) is None


def test_batches_are_asked_for_once_and_a_damaged_answer_again(tmp_path: Path) -> None:
    finder = Finder(tmp_path, lambda kind, request: {"candidates": [16, "width must be even"]})
    for _ in range(2):
        assert finder.batches(MEMBERS[:2]) == [16, "width must be even"]
    assert len(finder.asked) == 1
    (file,) = tmp_path.rglob("*.json")
    file.write_text("[16")
    assert finder.batches(MEMBERS[:2]) == [16, "width must be even"] and len(finder.asked) == 2
    finder.batches(MEMBERS[:1])
    assert len(finder.asked) == 3


@pytest.mark.parametrize(
    ("monomial", "name"),
    [
        (Monomial(Fraction(1), (("depth", 1),)), "depth"),
        (Monomial(Fraction(2), (("depth", 1),)), None),
        (Monomial(Fraction(1), (("depth", 1),), 1), None),
        (Monomial(Fraction(1), (("depth", 2),)), None),
        (Monomial(Fraction(1), (("depth", 1), ("width", 1))), None),
        (Monomial(Fraction(0), (), 12), None),
    ],
)
def test_a_parameter_is_the_number_of_blocks_if_they_are_equal(monomial: Any, name: str | None) -> None:
    assert depth_of(SimpleNamespace(depth=monomial)) == name  # type: ignore[arg-type]
