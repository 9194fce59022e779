"""A study that is being written is checked and screened, and nothing is submitted."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from api.routes import screenings
from tests.services.serving import InProcess, full_spec

SPACE = {
    "lr": {"low": 1.0, "high": 10.0, "log": True},
    "depth": {"low": 2, "high": 8, "step": 2},
    "act": {"choice": ["gelu", 1]},
    "size": {"ordinal": [8, 16]},
    "rate": {"low": 0.1, "high": 0.2, "prior": 0.15},
}


def printing(answer: Any) -> tuple[str, ...]:
    """A command that reads the question and prints this answer."""
    return sys.executable, "-c", f"import sys; sys.stdin.buffer.read(); print({json.dumps(answer)!r})"


def test_a_study_is_checked_and_its_space_is_described(api: InProcess) -> None:
    draft = api.post("/v1/studies:check", json={"spec": full_spec(space=SPACE)}).json()
    shown = {each["name"]: (each["kind"], each["low"], each["high"], each["step"]) for each in draft["parameters"]}
    assert shown == {
        "lr": ("float", "1.0", "10.0", ""),
        "depth": ("int", "2", "8", "2"),
        "act": ("choice", "", "", ""),
        "size": ("ordinal", "", "", ""),
        "rate": ("other", "", "", ""),
    }
    assert [each["values"] for each in draft["parameters"]] == ["", "", '"gelu", 1', "8, 16", ""]
    wrong = api.post("/v1/studies:check", json={"spec": {**full_spec(), "space": {"lr": {"low": 2, "high": 1}}}})
    assert (wrong.status_code, "low (2) must not exceed high (1)" in wrong.json()["detail"]) == (422, True)
    assert api.store.studies.page() == []


def test_a_space_is_screened_in_a_process_of_its_own(api: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"num_candidates": 4, "num_fitting": 3, "num_refused": 0, "why_refused": "", "parts": []}
    counts["ranks"] = [{"num_ranks": 1, "num_candidates": 3, "reserved_mib": 20.5}]
    monkeypatch.setattr(screenings, "COMMAND", printing(counts))
    answer = api.post("/v1/studies:screen?candidates=4", json={"spec": full_spec()})
    assert answer.json() == {**counts, "num_devices": 4, "largest_mib": 96}
    monkeypatch.setattr(screenings, "COMMAND", printing({"error": "no such workload"}))
    refused = api.post("/v1/studies:screen", json={"spec": full_spec()})
    assert (refused.status_code, refused.json()["detail"]) == (422, "no such workload")
    monkeypatch.setattr(screenings, "COMMAND", (sys.executable, "-c", "raise SystemExit(3)"))
    assert api.post("/v1/studies:screen", json={"spec": full_spec()}).status_code == 503
    assert api.store.studies.page() == []
