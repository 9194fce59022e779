"""Runs of benchmarks say which cases have no result."""

from __future__ import annotations

from benchmarks.running.results import Finding
from benchmarks.running.runner import failures


def test_cases_that_fail_are_named_at_the_end_of_a_run() -> None:
    findings = [Finding("plans", "a", ["1"]), Finding("plans", "b", failure="RuntimeError: a rank failed")]
    assert failures("plans", findings) == ["plans: 1 of 2 cases have no result: b"]
    assert failures("plans", findings[:1]) == []
