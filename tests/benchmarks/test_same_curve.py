"""Every plan of every idiom trains the model that one rank trains."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from benchmarks.curves.forks import CRASHED, HANGS, in_forks
from benchmarks.same_curve import DEPENDS, FOLDERS, Outcome, compared, figures, idioms, largest_difference, page, plans
from estimators.model import INDIVISIBLE, Divisions
from tests.services.warm import Warm
from tests.waiting import PATIENCE_SECONDS

SINGLE = {"values": [{"loss": 2.0}, {"loss": 1.0}]}


def run(warm: Warm, *arguments: str) -> dict[str, Any]:
    ended = warm.run("benchmarks.same_curve", arguments, os.environ, 600)
    assert ended.returncode == 0, ended.stderr
    figures_of_run: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    assert (figures_of_run["silently_wrong"], figures_of_run["hangs"], figures_of_run["refused_with_cause_pct"]) == (
        0,
        0,
        100,
    ), ended.stdout
    return figures_of_run


@pytest.mark.full
def test_a_plan_of_some_idioms_trains_the_model_of_one_rank(warm: Warm) -> None:
    values = run(warm, "--quick")
    assert values["equal"] > values["refused"]


@pytest.mark.soak
def test_every_plan_of_every_idiom_trains_the_model_of_one_rank(warm: Warm) -> None:
    values = run(warm)
    assert values["idioms"] >= 40 and values["idiom_plans"] >= 200


def test_idioms_are_the_workloads_of_the_folders() -> None:
    pairs = idioms(FOLDERS)
    names = [str(idiom) for idiom, _ in pairs]
    assert "state.py:BatchNormBlocks" in [str(idiom) for idiom, members in pairs if DEPENDS in members]
    assert "passes.py:LossInModel" in names
    assert not any(name.endswith((":Points", ":Stacked")) for name in names)
    assert len(set(names)) == len(names)


def test_plans_cover_every_kind_on_two_ranks_and_divide_the_batch() -> None:
    every = list(plans(Divisions(most_parts=2, most_stages=2), "seed"))
    assert {plan.batch for plan in every} == {8}
    assert {"dp_shard", "dp_replicate", "zero1", "tp", "pp"} <= {
        name for plan in every for name, value in plan.values.items() if value is True or value not in (1, False)
    }
    assert every == list(plans(Divisions(most_parts=2, most_stages=2), "seed"))
    assert len(list(plans(INDIVISIBLE, "seed"))) < len(every)


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        ([SINGLE, {"values": []}], "equal"),
        ([{"values": [{"loss": 2.0}, {"loss": 1.001}]}], "wrong"),
        ([{"values": [{"loss": 2.0}]}], "wrong"),
        ([{"values": [{"other": 2.0}, {"other": 1.0}]}], "wrong"),
        ([HANGS, SINGLE], "hangs"),
        ([HANGS, CRASHED], "failed"),
        ([{"lost": "peer"}, {"refused": "why"}], "refused"),
        ([{"lost": "peer"}, {"error": "why"}], "failed"),
    ],
)
def test_outcomes_of_gangs(answers: list[Any], kind: str) -> None:
    assert compared(answers, SINGLE).kind == kind


def test_differences_are_relative_to_values_above_one() -> None:
    assert largest_difference([{"loss": 101.0}], [{"loss": 100.0}]) == pytest.approx(0.01)
    assert largest_difference([{"loss": 0.01}], [{"loss": 0.0}]) == pytest.approx(0.01)
    assert largest_difference([{"loss": float("nan")}], [{"loss": 1.0}]) == float("inf")


def test_a_fork_that_crashes_or_hangs_spoils_only_its_own_answer(capsys: pytest.CaptureFixture[str]) -> None:
    def hang() -> None:
        while True:
            pass

    def fail() -> None:
        raise KeyError("a shape")

    def end() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_forks([lambda: [1], end, fail], PATIENCE_SECONDS) == [[1], CRASHED, CRASHED]
    printed = capsys.readouterr().err
    assert "exit code -9" in printed and "exit code 1: Traceback" in printed and "KeyError: 'a shape'" in printed
    assert in_forks([lambda: [1], hang], 1) == [[1], HANGS]


def test_refusals_count_as_causes_and_failures_do_not() -> None:
    findings = [("a/b.py:A", "1 rank", Outcome(kind)) for kind in ("equal", "refused", "failed", "wrong")]
    values = figures(findings)
    assert (values["refused_with_cause_pct"], values["silently_wrong"], values["idiom_plans"]) == (50, 1, 4)


def test_the_page_has_wrong_idioms_first_and_says_why_plans_are_refused() -> None:
    findings = [
        ("a/b.py:A", "1 rank", Outcome("refused", "one\ntwo")),
        ("a/b.py:B", "1 rank", Outcome("wrong", "", 0.5)),
    ]
    rows = [line for line in page(findings).splitlines() if line.startswith("| a/")]
    wrong = "| a/b.py:B |  | 1 |  |  |  |  |  | 5e-01 |  |"
    assert rows == [wrong, "| a/b.py:A |  |  |  |  | 1 |  |  | 0e+00 | one / two |"]
