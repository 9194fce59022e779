"""Removes what deleted studies have left, and what ended studies have kept for longer than the settings say.

The leading controller calls it between its cycles; a call does one small step. It may be killed at any time: the rows
of a trial are removed after its checkpoints, so what is left is found again by the next controller.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from scamp_service.settings import Settings
from scamp_service.store.store import Store

log = logging.getLogger("scamp.sweeper")

ROWS_AT_ONCE = 2000
"""Rows that one transaction removes: it takes about 20 ms, in which nobody else writes."""
FOLDERS_AT_ONCE = 10
REST_SECONDS = 5.0
"""Pause once nothing is left to remove."""
AGEING_SECONDS = 3600.0
DAY_SECONDS = 24 * 3600.0


class Sweeper:
    """Does one step per ``tick``. ``clock`` returns seconds since the epoch, ``monotonic`` those since any moment."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._settings, self._clock, self._monotonic = store, settings, clock, monotonic
        self._steps: Iterator[None] = iter(())
        self._rests_until = self._ages_at = monotonic()
        self._aged: set[tuple[str, int]] = set()  # what has been removed of which study since this process began

    def tick(self) -> None:
        """Do one step, unless everything was done a moment ago. Raises ``Unavailable`` and ``Deposed``."""
        if self._monotonic() < self._rests_until:
            return
        try:
            next(self._steps)
        except StopIteration:
            self._steps = self._round()
            self._rests_until = self._monotonic() + REST_SECONDS
        except BaseException:
            self._steps = iter(())  # a generator that has raised has ended
            raise

    def _round(self) -> Iterator[None]:
        yield from self._deleted()
        if self._monotonic() >= self._ages_at:
            yield from self._old()
            self._ages_at = self._monotonic() + AGEING_SECONDS

    def _deleted(self) -> Iterator[None]:
        while trials := self._store.deleted_trials():
            for trial_id in trials:
                _remove_folder(self._settings.checkpoints / str(trial_id))
                while not self._store.remove_trial(trial_id, limit=ROWS_AT_ONCE):
                    yield
                yield
        for study_id in self._store.deleted_studies_with_events():
            while self._store.remove_events(study_id, limit=ROWS_AT_ONCE):
                yield
        for code in self._store.remove_unused_code():
            for folder in (self._settings.data_dir / "code", self._settings.data_dir / "profiles" / "code"):
                _remove_folder(folder / code)
                (folder / f"{code}.zip").unlink(missing_ok=True)
            yield

    def _old(self) -> Iterator[None]:
        kept_days = {
            "checkpoints": self._settings.keep_checkpoints_days,
            "logs": self._settings.keep_logs_days,
            "events": self._settings.keep_events_days,
        }
        steps: Mapping[str, Callable[[int], Iterator[None]]] = {
            "checkpoints": self._checkpoints_of,
            "logs": lambda study_id: _until_none(self._store.remove_logs, study_id),
            "events": lambda study_id: _until_none(self._store.remove_events, study_id),
        }
        for kind, days in kept_days.items():
            if days is None:
                continue
            for study_id in self._store.studies_ended_before(self._clock() - days * DAY_SECONDS):
                if (kind, study_id) not in self._aged:
                    yield from steps[kind](study_id)
                    self._aged.add((kind, study_id))
        if self._settings.keep_traces_days is not None:
            yield from self._traces(self._clock() - self._settings.keep_traces_days * DAY_SECONDS)

    def _checkpoints_of(self, study_id: int) -> Iterator[None]:
        root = self._settings.checkpoints
        present = {path.name for path in root.iterdir()} if root.is_dir() else set()
        folders = [root / str(one.id) for one in self._store.history(study_id) if str(one.id) in present]
        for number, folder in enumerate(folders, 1):
            _remove_folder(folder)
            if number % FOLDERS_AT_ONCE == 0:
                yield
        yield

    def _traces(self, before: float) -> Iterator[None]:
        """Remove traces that no study has read since ``before``. A trace belongs to all studies with equal models."""
        for folder in sorted((self._settings.data_dir / "profiles" / "traces").glob("*/")):
            for file in folder.iterdir():
                if file.stat().st_mtime < before:
                    file.unlink(missing_ok=True)
            yield


def _until_none(remove: Callable[..., int], study_id: int) -> Iterator[None]:
    while remove(study_id, limit=ROWS_AT_ONCE):
        yield


def _remove_folder(folder: Path) -> None:
    """Remove a folder with all in it, if it exists; what cannot be removed is logged, and left to the operator."""
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("%s cannot be removed (%s); remove it by hand", folder, error)
