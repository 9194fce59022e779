"""A trace of a trial has its attempts and the times between them, as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scamp.trackers.run import Run

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")


def attempt(number: int, created_at: float, ended_at: float, outcome: str) -> dict[str, Any]:
    return {
        "attempt": number,
        "created_at": created_at,
        "started_at": created_at + 2,
        "ended_at": ended_at,
        "outcome": outcome,
        "plan_text": "8 samples",
        "devices": ["n/0"],
        "placement_reason": "first free device",
    }


def test_spans_are_the_attempts_and_the_waits_between_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry.sdk.trace.export import SpanExportResult

    from scamp.trackers.otlp import Otlp

    monkeypatch.setenv("SCAMP_DATA_DIR", str(tmp_path))
    study = {"id": 7, "name": "digits", "created_at": 90.0}
    trial = {
        "number": 3,
        "origin": "SEARCH",
        "state": "FAILED",
        "reason": "its code raised ValueError",
        "plan_text": "",
        "params": {"lr": 0.1, "layers": [{"width": 8}]},
        "value": None,
        "created_at": 100.0,
        "finished_at": 160.5,
    }
    attempts = [attempt(1, 110, 120, "OUT_OF_MEMORY"), attempt(2, 130, 160, "ERROR")]
    run = Run(study, trial, "http://scamp/7/3", lambda after: [], lambda: attempts)
    tracker = Otlp("http://127.0.0.1:9", study)
    spans: list[Any] = []

    def export(sent: list[Any]) -> SpanExportResult:
        spans.extend(sent)
        return SpanExportResult.SUCCESS

    monkeypatch.setattr(tracker._exporter, "export", export)
    for _ in range(2):
        tracker.write(run)
    assert [(span.name, span.start_time / 1e9, span.end_time / 1e9, span.status.is_ok) for span in spans] == [
        ("trial 3", 100, 160.5, False),
        ("waiting", 100, 110, True),
        ("attempt 1", 110, 120, False),
        ("waiting", 120, 130, True),
        ("attempt 2", 130, 160, False),
    ]
    assert spans[0].attributes["scamp.params.layers.0.width"] == 8
    assert [event.timestamp / 1e9 for span in spans for event in span.events] == [112, 132]
    assert len({span.context.span_id for span in spans}) == 5 and len({span.context.trace_id for span in spans}) == 1
    tracker.close()
