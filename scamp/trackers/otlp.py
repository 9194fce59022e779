"""Sends the life of each trial as a trace of OpenTelemetry, by OTLP over HTTP, once the trial has ended.

The root span lasts from the trial's creation to its end. Its children are the attempts, and the times between them. Ids
follow from what a span says, and a small file in the data directory lists those that have been sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

from scamp.addresses import local_service
from scamp.trackers.run import Run, key_of

SHORTEST_SECONDS = 1.0
"""A shorter time without an attempt is no span of its own: the service decides what is next."""


class Otlp:
    """A receiver of traces at a URL; ``/v1/traces`` is added to one without a path. Headers are those of the
    environment, ``OTEL_EXPORTER_OTLP_HEADERS``."""

    errors = (ConnectionError,)

    def __init__(self, url: str, study: Mapping[str, Any]) -> None:
        self._key = key_of(study)
        path = "" if urlsplit(url).path.strip("/") else "/v1/traces"
        self._exporter = OTLPSpanExporter(endpoint=url.rstrip("/") + path)
        self._resource = Resource.create({"service.name": "scamp"})
        self._file = local_service().data_dir / "mirrored" / f"otlp-{self._key}-{_hash(url, 4):08x}"
        self._sent = set(self._file.read_text().split()) if self._file.exists() else set()

    def write(self, run: Run) -> None:
        """Send the spans of a run that has ended, if they have not been sent."""
        if run.finished_at is None:
            return
        root = self._root(run, run.finished_at)
        if _id(root) in self._sent:
            return
        spans = [span for span in (root, *self._children(run, root)) if _id(span) not in self._sent]
        if self._exporter.export(spans) is not SpanExportResult.SUCCESS:
            raise ConnectionError("it has not accepted a trace")
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a") as file:
            file.write("".join(f"{_id(span)}\n" for span in spans))
        self._sent |= set(map(_id, spans))

    def close(self) -> None:
        """Close the connection; every trace is complete when ``write`` returns."""
        self._exporter.shutdown()

    def _root(self, run: Run, finished_at: float) -> ReadableSpan:
        attributes = {
            "scamp.study.id": run.study["id"],
            "scamp.study.name": run.study["name"],
            "scamp.trial.number": run.number,
            **{f"scamp.trial.{name}": text for name, text in run.facts.items()},
            **{f"scamp.params.{name}": value for name, value in run.params.items()},
        }
        if run.trial["value"] is not None:
            attributes["scamp.trial.value"] = run.trial["value"]
        status = Status(StatusCode.ERROR, run.facts.get("reason")) if run.has_failed else Status(StatusCode.OK)
        return self._span(run, f"trial {run.number}", run.trial["created_at"], finished_at, attributes, status)

    def _children(self, run: Run, root: ReadableSpan) -> Iterator[ReadableSpan]:
        if run.trial["origin"] == "EXTERNAL":
            return  # another program ran it
        end, finished_at = run.trial["created_at"], float(run.finished_at or 0)
        for attempt in run.attempts():
            if attempt["created_at"] - end > SHORTEST_SECONDS:
                yield self._span(run, "waiting", end, attempt["created_at"], {}, Status(), root)
            end = attempt["ended_at"] or max(finished_at, attempt["created_at"])
            attributes = {
                "scamp.attempt.outcome": attempt["outcome"] or "",
                "scamp.attempt.plan": attempt["plan_text"],
                "scamp.attempt.devices": attempt["devices"],
                "scamp.attempt.reason": attempt["placement_reason"],
            }
            failed = attempt["outcome"] not in (None, "DONE", "STOPPED")
            status = Status(StatusCode.ERROR, attempt["outcome"]) if failed else Status()
            name, began = f"attempt {attempt['attempt']}", attempt["created_at"]
            yield self._span(run, name, began, end, attributes, status, root, attempt["started_at"])
        if finished_at - end > SHORTEST_SECONDS:
            yield self._span(run, "waiting", end, finished_at, {}, Status(), root)

    def _span(
        self,
        run: Run,
        name: str,
        start: float,
        end: float,
        attributes: Mapping[str, Any],
        status: Status,
        parent: ReadableSpan | None = None,
        training_at: float | None = None,
    ) -> ReadableSpan:
        trace = f"{self._key}/{run.number}"
        context = SpanContext(
            _hash(trace, 16), _hash(f"{trace}/{name}/{start}/{end}", 8), is_remote=False, trace_flags=TraceFlags(1)
        )
        return ReadableSpan(
            name,
            context=context,
            parent=parent.context if parent else None,
            resource=self._resource,
            attributes=attributes,
            events=[] if training_at is None else [Event("training begins", timestamp=_nanoseconds(training_at))],
            status=status,
            start_time=_nanoseconds(start),
            end_time=_nanoseconds(end),
        )


def _id(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.span_id:016x}"


def _hash(text: str, num_bytes: int) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:num_bytes])


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
