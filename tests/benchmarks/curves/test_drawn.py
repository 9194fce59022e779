"""Drawn programs train as one rank does, through an interruption, or it is known why not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.curves import drawn
from benchmarks.curves.drawn import HEADING, Outcome, figures, outcome_of, section
from estimators.model import Divisions

WRITTEN = """
import torch
from torch import nn
from workloads.protocol import Workload

POINTS = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))


class Program(Workload):
    num_train, num_eval, default_batch = 64, 16, 16
    share = 0.0
    def build_model(self): return nn.Linear(6, 1)
    def optimizer(self, model): return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    def train_batch(self, indices): return POINTS[indices]
    eval_batch = train_batch
    def on_step(self, step, steps, optimizer): self.share = LATER if step >= 5 else 0.0
    def loss(self, model, batch):
        out = model(batch)
        return (out[:, 0] - batch.sum(1)).square().mean() + self.share * out.std()
    def evaluate(self, model, batch): return {"loss": (model(batch)[:, 0] - batch.sum(1)).square()}
"""


@pytest.mark.full
@pytest.mark.sample
@pytest.mark.parametrize("later", [0, 0.5])
def test_a_program_is_trained_divided_unless_its_curve_depends_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: float
) -> None:
    monkeypatch.setattr(drawn, "program", lambda number: WRITTEN.replace("LATER", str(later)))
    outcome = outcome_of(0, tmp_path / "program")
    assert outcome.kind == "equal" and outcome.is_divided == outcome.may_be == (not later), outcome
    assert outcome.how.startswith("alarm: ") == bool(later)
    assert not (tmp_path / "program").exists()


def test_plans_divide_the_batch_or_do_not() -> None:
    divisions = Divisions(most_parts=2, most_stages=2)
    for divides in (True, False):
        plans = drawn._plans(divisions, random.Random(0), divides=divides)
        assert plans and {plan.batch for plan in plans} == {drawn.BATCH}
        assert {any(layout.divides_batch for layout in plan.layouts) for plan in plans} == {divides}


def test_an_interruption_is_a_pause_or_a_kill_after_a_report() -> None:
    attempts = [drawn._interruption(random.Random(seed))[0] for seed in range(50)]
    paused = [attempt for attempt in attempts if attempt.until]
    killed = [attempt for attempt in attempts if attempt.dies_in]
    assert len(paused) + len(killed) == 50 and min(len(paused), len(killed)) > 10
    assert all(attempt.report_every < (attempt.dies_in or 0) <= drawn.STEPS for attempt in killed)


@pytest.mark.parametrize(
    ("ranks", "kind"),
    [
        ([{"values": [[1, {"loss": 1.00001}]]}], "equal"),
        ([{"values": [[1, {"loss": 1.001}]]}], "wrong"),
        ([{"values": [[2, {"loss": 1.0}]]}], "wrong"),
        ([{"values": [[1, {"loss": float("nan")}]]}], "wrong"),
        ([{"lost": "peer"}, {"alarm": "why"}], "alarm"),
        ([{"lost": "peer"}, {"error": "why"}], "failed"),
        ([{"hangs": "hangs"}, {"crashed": "crashed"}], "failed"),
    ],
)
def test_outcomes(ranks: Sequence[dict[str, Any]], kind: str) -> None:
    assert drawn._compared(ranks, {"values": [[1, {"loss": 1.0}]]}, "").kind == kind


def test_figures_count_what_was_trained_and_what_was_divided_in_vain(tmp_path: Path) -> None:
    outcomes = {
        1: Outcome("equal", "1 rank", is_divided=True, may_be=True),
        2: Outcome("equal", "its trace: why: 1 rank"),
        3: Outcome("equal", "alarm: why: 1 rank", may_be=True),
        4: Outcome("wrong", "1 rank", 0.5, is_divided=True),
    }
    for number, outcome in outcomes.items():
        drawn.keep(tmp_path / "results", number, outcome)
    assert drawn.read(tmp_path / "results") == outcomes
    assert figures(outcomes) == {
        "drawn_programs": 4,
        "drawn_silently_wrong": 1,
        "drawn_trained_pct": 75,
        "drawn_failed": 0,
        "drawn_divided_pct": 50,
    }
    text = section(outcomes)
    assert text.startswith(HEADING) and "| its trace | 1 |" in text and "| 4 | wrong | 1 rank |" in text
