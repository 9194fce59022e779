"""Writes runs to Weights & Biases: each study is a group, and a run's id follows from its study and number.

The service of Weights & Biases says at which step a run continues. Offline it cannot, so what an earlier process wrote
of a run that had not ended is replaced. A file beside an ended run says that all of it has been written.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb

from scamp.trackers.run import Run, key_of

ENDED = "scamp-ended"


class Wandb:
    """A project, named ``PROJECT`` or ``ENTITY/PROJECT``, with a run for each trial that has begun."""

    errors = (wandb.errors.Error,)

    def __init__(self, project: str, study: Mapping[str, Any]) -> None:
        entity, _, self._project = project.rpartition("/")
        self._entity = entity or None
        self._key = key_of(study)
        self._live: dict[int, Any] = {}
        self._steps: dict[int, int] = {}
        self._settings = wandb.Settings(silent=True, console="off", disable_git=True, x_disable_stats=True)
        folder = Path(wandb.setup().settings.wandb_dir)
        self._ended = {file.parent.name: file.read_text() for file in folder.glob(f"*run-*/{ENDED}")}

    def write(self, run: Run) -> None:
        """Write the new evaluations of a run, and what has changed of its state and plan; close one that has ended."""
        ended = str(run.finished_at or "")
        if not (ended or run.trial["started_at"]) or (ended and self._is_written(run, ended)):
            return
        live = self._live.get(run.number) or self._begin(run)
        for row in run.evaluations(self._steps[run.number]):
            live.log({**row.values, "_timestamp": row.time}, step=row.step, commit=True)
            self._steps[run.number] = row.step
        facts = {**run.facts, "value": run.trial["value"]}
        live.summary.update({f"scamp/{name}": value for name, value in facts.items()})
        if ended:
            live.finish(exit_code=int(run.has_failed))
            folder = Path(live.dir).parent
            (folder / ENDED).write_text(ended)
            self._ended[folder.name] = ended
            del self._live[run.number]

    def close(self) -> None:
        """Send what has been written of runs that have not ended; a later process continues them."""
        for live in self._live.values():
            live.finish()

    def _begin(self, run: Run) -> Any:
        name = f"{run.study['name']} trial {run.number}"
        live = wandb.init(
            entity=self._entity,
            project=self._project,
            group=f"study {self._key}",
            id=self._id(run),
            name=name,
            notes=run.page,
            config=run.params,
            resume="allow",
            reinit="create_new",
            settings=self._settings,
        )
        self._live[run.number] = live
        self._steps[run.number] = live.starting_step - 1
        if live.offline:
            folder = Path(live.dir).parent
            for earlier in folder.parent.glob(f"offline-run-*-{live.id}"):
                if earlier != folder:
                    shutil.rmtree(earlier)
        return live

    def _id(self, run: Run) -> str:
        return hashlib.sha256(f"{self._key}/{run.number}".encode()).hexdigest()[:16]

    def _is_written(self, run: Run, ended: str) -> bool:
        return any(name.endswith(self._id(run)) and at == ended for name, at in self._ended.items())
