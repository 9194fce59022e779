"""The measured share of a step in which ranks wait for each other."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch.distributed as dist

from estimators.model import Plan
from workloads.parallel.exchanging.gloo import AllGather
from workloads.training.waiting import Waiting


def test_calls_that_wait_within_others_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting, now = Waiting(), 0.0
    before = AllGather.__call__
    gather: Any = AllGather()

    def work() -> None:
        nonlocal now
        now += 1.0

    def call(self: Any) -> None:
        work()
        self.allocate()

    monkeypatch.setattr(time, "perf_counter", lambda: now)

    monkeypatch.setattr(AllGather, "__call__", call)
    monkeypatch.setattr(AllGather, "allocate", lambda self: None)
    with waiting.step():
        gather()
        work()
    assert waiting.share == 0.5 and not waiting.is_complete
    monkeypatch.undo()
    assert AllGather.__call__ is before
    assert dist.Work.wait.__name__ == "wait"


@pytest.mark.full
def test_a_gang_reports_its_share_once_and_trains_the_same_curve(ranks: Any) -> None:
    plan = Plan(8, 2, dp_shard=2)
    batch = plan.batch
    params = {"depth": 2, "width": 32, "batch": batch}
    answers = ranks.train(plan, 8, report_every=4, params=params)
    assert answers[1]["shares"] == []
    (share,) = answers[0]["shares"]
    assert 0 < share < 1
    assert ranks.train(Plan(batch), 4, params=params)[0]["shares"] == []
