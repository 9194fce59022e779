"""Answers that break a rule of the document are counted by kind, with the operation that gave them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.facing.fuzz_part import Case, cases, count, figures, measure


def finished(label: str, statuses: list[int | None], *failures: tuple[str, str]) -> dict[str, Any]:
    interactions = {
        str(number): {"request": {"uri": f"/{number}"}, "response": {"status_code": status} if status else None}
        for number, status in enumerate(statuses)
    }
    failed = [
        {"name": check, "status": "failure", "failure_info": {"failure": {"title": title, "message": "Received: 1\n2"}}}
        for check, title in failures
    ]
    checks = {"0": [*failed, {"name": "not_a_server_error", "status": "success"}]}
    return {"ScenarioFinished": {"recorder": {"label": label, "interactions": interactions, "checks": checks}}}


def test_failures_are_counted_by_kind() -> None:
    events = [
        {"Initialize": {}},
        finished("GET /a", [200, 404]),
        finished("GET /b", [500, None], ("not_a_server_error", "Server error"), ("status_code_conformance", "Status")),
        finished("GET /c", [201], ("content_type_conformance", "Type"), ("response_schema_conformance", "Fields")),
    ]
    result = count(events, 1.0)
    assert (result.num_requests, result.num_accepted) == (5, 2)
    assert (result.num_5xx, result.num_statuses, result.num_bodies) == (2, 1, 2)
    assert list(result.broken) == [
        "GET /b: no answer to /1",
        "GET /b: Server error Received: 1",
        "GET /b: Status Received: 1",
        "GET /c: Type Received: 1",
        "GET /c: Fields Received: 1",
    ]
    assert figures([result, result])["fuzz_5xx"] == 4


def test_three_seeds_are_asked_with_and_without_users() -> None:
    assert len({str(case) for case in cases(False, 0)}) == 6


def test_an_environment_without_schemathesis_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="bin/pip install schemathesis=="):
        measure(Case(0, False, 1, tmp_path), 60)
