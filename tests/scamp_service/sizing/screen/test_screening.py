"""A screening says the same about a candidate as `scamp estimate` says about it alone."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from estimators.model import Layout, Plan
from estimators.profile import ModelProfile
from estimators.work import StepWork, Work
from placement.option import Evidence, NoPlan, Option
from placement.planning.answers import ChosenPlan
from scamp_service.cli.tables.screen import as_table, footnotes
from scamp_service.sizing.candidates import candidates_of
from scamp_service.sizing.estimate import Estimator, equal_devices
from scamp_service.sizing.screen.blueprints import BlueprintFinder
from scamp_service.sizing.screen.groups import grouped
from scamp_service.sizing.screen.joint_search import NO_FORMULA
from scamp_service.sizing.screen.screened import Screening
from scamp_service.sizing.screen.screening import screen
from scamp_service.sizing.tracing.options import OneBlob, TracedWorkload, Tracing
from scamp_service.sizing.tracing.trace_pool import TracePool
from scamp_service.sizing.tracing.traces import Tracer
from tests.conftest import Scamp

STUDY = """
name: chars
workload: stdlib_gpt
objective: {metric: loss, direction: minimize}
space:
  depth: {low: 1, high: 40}
  width: {low: 16, high: 128, step: 16}
  dropout: {low: 0.05, high: 0.2}
fixed: {heads: 4, batch: 16, context: 64}
budget: {trials: 4, steps: 4, report_every: 2}
"""
CLUSTER = equal_devices(1, 100)
PROFILE = ModelProfile("s", 1, 4, {}, {Layout(): StepWork(Work(), Work(), Work())})

pytestmark = [pytest.mark.usefixtures("warm_traces"), pytest.mark.full]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("screen")
    (folder / "study.yaml").write_text(STUDY)
    return folder


@pytest.fixture(scope="module")
def said() -> list[str]:
    return []


@pytest.fixture(scope="module")
def screening(folder: Path, said: list[str]) -> Screening:
    parsed = candidates_of(str(folder / "study.yaml"), {}, 40, at_random=True)
    odd = {**parsed.candidates[0], "width": 30}  # no multiple of the heads
    return screen("stdlib_gpt", None, [*parsed.candidates, odd], CLUSTER, Tracing(folder / "profiles"), say=said.append)


def test_it_agrees_with_an_estimate_of_each(screening: Screening, folder: Path) -> None:
    by_formula = [number for number in range(40) if screening.candidates[number].known_by == "formulas"]
    assert len(by_formula) > 30
    plans = {
        candidate.choice.plan: candidate
        for candidate in screening.candidates
        if isinstance(candidate.choice, ChosenPlan)
    }
    accumulating = [candidate for plan, candidate in plans.items() if plan.num_micro_batches > 1]
    assert accumulating, "the space has candidates that fit only with accumulation"
    with Estimator("stdlib_gpt", None, Tracing(folder / "profiles")) as estimator:
        for candidate in [screening.candidates[by_formula[0]], accumulating[0]]:
            alone = estimator.estimate(candidate.params, CLUSTER)
            assert candidate.reason == alone.choice.reason + alone.profile.assumed
            if isinstance(candidate.choice, ChosenPlan):
                assert isinstance(alone.choice, ChosenPlan)
                of_step = replace(alone.choice.prediction, evaluation_bytes=0)  # formulas know no evaluations
                assert (candidate.choice.plan, candidate.choice.prediction) == (alone.choice.plan, of_step)


def test_candidates_of_one_block_are_traced_and_what_the_workload_refuses_is_told(
    screening: Screening, said: list[str]
) -> None:
    single = [candidate for candidate in screening.candidates if candidate.traced == NO_FORMULA]
    assert {candidate.params["depth"] for candidate in single} == {1} and {
        candidate.known_by for candidate in single
    } == {"traces"}
    assert any(f"no formulas for {len(single)} candidates" in line for line in said)
    assert all(isinstance(candidate.choice, ChosenPlan | NoPlan) for candidate in single)
    assert "multiple of heads" in screening.candidates[40].refused and screening.candidates[40].choice is None


def test_the_table_counts_every_candidate(screening: Screening) -> None:
    console = Console(width=120, record=True, file=None, quiet=False, force_terminal=False)
    with console.capture() as captured:
        console.print(as_table(screening))
    rows = [line.split() for line in captured.get().splitlines()[1:]]
    assert sum(int(row[1]) for row in rows) == 40
    notes = list(footnotes(screening, None))
    assert any(line.startswith("1 refused by the workload") for line in notes)
    assert any("agree to the byte" in line for line in notes)


def test_a_second_screening_traces_nothing(screening: Screening, folder: Path) -> None:
    candidates = [candidate.params for candidate in screening.candidates if candidate.known_by == "formulas"]
    second = screen("stdlib_gpt", None, candidates, CLUSTER, Tracing(folder / "profiles"))
    assert (second.num_examples, second.num_checked) == (0, 0)
    assert not any(candidate.traced for candidate in second.candidates)
    first_answers = {json.dumps(dict(candidate.params)): candidate.to_json() for candidate in screening.candidates}
    assert all(
        candidate.to_json() == first_answers[json.dumps(dict(candidate.params))] for candidate in second.candidates
    )


def test_a_damaged_blueprint_counts_as_absent(screening: Screening, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "profiles", tmp_path / "profiles")
    files = [file for file in (tmp_path / "profiles").rglob("*.json") if b'"lowest"' in file.read_bytes()]
    assert len(files) == 2  # without and with accumulation
    for file in files:
        file.write_bytes(file.read_bytes()[:1000])
    params_by_index = {
        index: candidate.params for index, candidate in enumerate(screening.candidates) if not candidate.refused
    }
    (group,) = grouped(params_by_index)
    for cache, there in ((folder / "profiles", True), (tmp_path / "profiles", False)):
        with TracePool() as pool:
            finder = BlueprintFinder(TracedWorkload("stdlib_gpt", None, Tracer(OneBlob(b""), cache, 60), pool))
            assert (finder.cached(group, Layout()) is not None) == there


def test_a_candidate_with_untried_plans_says_so(screening: Screening) -> None:
    candidate = next(candidate for candidate in screening.candidates if isinstance(candidate.choice, ChosenPlan))
    pipeline = Option(Plan(1, 2, pp=2), candidate.choice.prediction, 100, Evidence.UNITS)  # type: ignore[union-attr]
    unsure = replace(candidate, untried=(pipeline,))
    assert not candidate.may_be_cheaper
    assert unsure.may_be_cheaper
    assert unsure.to_json()["untried"] == [pipeline.plan.to_json()] and unsure.to_json()["known_by"] == "formulas"
    (note,) = set(footnotes(replace(screening, candidates=[unsure]), None)) - set(
        footnotes(replace(screening, candidates=[candidate]), None)
    )
    assert note.startswith("1 may have a cheaper plan")


@pytest.mark.sample
def test_the_command_screens_a_study(folder: Path, screening: Screening, scamp: Scamp) -> None:
    args = ["screen", str(folder / "study.yaml"), "--candidates", "40", "--count", "1", "--mib", "100"]
    shown = scamp(folder, *args)
    assert shown.returncode == 0, shown.stderr
    assert "40 candidates on 1 × virtual, 100 MiB" in shown.stdout
    answer = scamp(folder, *args, "--json")
    assert len(json.loads(answer.stdout)) == 40
