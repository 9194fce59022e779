"""Writes runs to an MLflow server or store: an experiment for each study. Tags of a run say what has been written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from scamp.trackers.run import MOST_CHARACTERS, Run, key_of

STUDY, TRIAL, STEP, ENDED = "scamp.study", "scamp.trial", "scamp.step", "scamp.ended"
AT_ONCE = 100
"""MLflow takes so many parameters and tags in a request, and ten times as many metrics."""
STATUS = {
    "WAITING": "SCHEDULED",
    "QUEUED": "SCHEDULED",
    "PAUSED": "SCHEDULED",
    "RUNNING": "RUNNING",
    "COMPLETED": "FINISHED",
    "PRUNED": "FINISHED",
    "FAILED": "FAILED",
    "INFEASIBLE": "FAILED",
    "CANCELLED": "KILLED",
}


@dataclass(slots=True)
class _Written:
    id: str
    tags: dict[str, str] = field(default_factory=dict)
    status: str = ""


class Mlflow:
    """An experiment of the tracking server or store at a URI, with a run for each trial."""

    errors = (MlflowException,)

    def __init__(self, uri: str, study: Mapping[str, Any]) -> None:
        self._client = MlflowClient(tracking_uri=uri)
        key = key_of(study)
        experiments = self._client.search_experiments(filter_string=f"tags.`{STUDY}` = '{key}'")
        if experiments:
            self._experiment = experiments[0].experiment_id
        else:
            self._experiment = self._client.create_experiment(f"{study['name']} {key}", tags={STUDY: key})
        self._runs: dict[int, _Written] = {}
        page = None
        while page is None or page.token:
            page = self._client.search_runs([self._experiment], max_results=1000, page_token=page and page.token)
            for run in page:
                if TRIAL in run.data.tags:
                    written = _Written(run.info.run_id, dict(run.data.tags), run.info.status)
                    self._runs[int(run.data.tags[TRIAL])] = written

    def write(self, run: Run) -> None:
        """Write the new evaluations of a run, and what has changed of its state and plan."""
        written = self._runs.get(run.number) or self._begin(run)
        if STEP not in written.tags:
            params = [Param(_name(name), str(value)[:MOST_CHARACTERS]) for name, value in run.params.items()]
            for start in range(0, len(params), AT_ONCE):
                self._client.log_batch(written.id, params=params[start : start + AT_ONCE])
        after = int(written.tags.get(STEP, -1))
        metrics: list[Metric] = []
        for row in run.evaluations(after):
            if len(metrics) + len(row.values) > 10 * AT_ONCE:
                self._log(written, metrics, {STEP: str(after)})
                metrics = []
            at = round(row.time * 1000)
            metrics += [Metric(_name(name), value, at, row.step) for name, value in row.values.items()]
            after = row.step
        tags = {f"scamp.{name}": text for name, text in run.facts.items()} | {STEP: str(after)}
        ended = str(run.finished_at or "")
        ended_at = round((run.finished_at or 0) * 1000)
        if ended and written.tags.get(ENDED) != ended:
            if run.trial["value"] is not None:
                metrics.append(Metric("scamp.value", run.trial["value"], ended_at, max(after, 0)))
            tags[ENDED] = ended
        self._log(written, metrics, tags)
        status = STATUS[run.trial["state"]]
        if written.status != status:
            if ended:
                self._client.set_terminated(written.id, status, ended_at)
            else:
                self._client.update_run(written.id, status)
            written.status = status

    def close(self) -> None:
        """Nothing is left: every request is complete when it returns."""

    def _begin(self, run: Run) -> _Written:
        created = self._client.create_run(
            self._experiment,
            start_time=round(run.trial["created_at"] * 1000),
            tags={TRIAL: str(run.number)},
            run_name=f"trial {run.number}",
        )
        self._runs[run.number] = written = _Written(created.info.run_id)
        return written

    def _log(self, written: _Written, metrics: list[Metric], tags: dict[str, str]) -> None:
        new = {name: text for name, text in tags.items() if written.tags.get(name) != text}
        if metrics or new:
            self._client.log_batch(written.id, metrics, tags=[RunTag(*tag) for tag in new.items()])
            written.tags |= new


def _name(name: str) -> str:
    """``name`` without the characters that MLflow refuses."""
    return re.sub(r"[^\w\-. /:]", "_", name)
