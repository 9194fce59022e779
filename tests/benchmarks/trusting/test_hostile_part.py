"""The figures of a hostile workload, and what is said where none can run."""

from __future__ import annotations

import pytest

from benchmarks.running.results import Finding
from benchmarks.trusting import hostile_part
from benchmarks.trusting.hostile_part import Result
from tests.services.hostile import TRIES
from tests.services.hostile_cases import CASES


def test_figures_count_cases() -> None:
    results = [Result(0, 0), Result(1, 0), Result(1, 1)]
    assert hostile_part.figures(results) == {"hostile_cases": 3, "hostile_read": 2, "hostile_hung": 1}


def test_notes_name_what_went_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostile_part, "why_not", lambda: "")
    findings = [
        Finding("hostile", "good", values={"read": 0, "hung": 0}),
        Finding("hostile", "bad", values={"read": 1, "hung": 0}),
    ]
    assert hostile_part.notes(findings) == ["hostile: bad"]


def test_where_no_such_service_can_run_the_notes_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostile_part, "why_not", lambda: "only root may")
    assert hostile_part.cases(False, 0) == [] and hostile_part.notes([]) == ["hostile: skipped: only root may"]


def test_every_try_is_a_case_of_ranks_and_of_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {f"a {role} {name}" for role in ("rank", "trace") for name in TRIES} <= CASES.keys()
    monkeypatch.setattr(hostile_part, "why_not", lambda: "")
    assert len(hostile_part.cases(False, 0)) >= 40 and 1 < len(hostile_part.cases(True, 0)) < 10
