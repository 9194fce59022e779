"""Removes what deleted studies have left, and what ended studies have kept for longer than the settings say.

The leading controller calls it between its cycles; a call does one small step of each kind of work. It may be killed at
any time: the rows of a trial are removed after its checkpoints, so what is left is found again by the next controller.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from scamp_service.errors import InvalidInput, Unavailable
from scamp_service.remote.copies import Copies
from scamp_service.remote.layout import pause_seconds
from scamp_service.settings import Settings
from scamp_service.store.store import Store
from workloads.files import untrusted
from workloads.training.checkpoints.name import trial_folder

log = logging.getLogger("scamp.sweeper")

ROWS_AT_ONCE = 2000
"""Rows that one transaction removes: it takes about 20 ms, in which nobody else writes."""
REST_SECONDS = 5.0
"""Pause before each round. So an error that stays fails a cycle of the controller only once in this many seconds."""
LOOK_SECONDS = 3600.0
"""Time from one look for what has become too old to the next."""
DAY_SECONDS = 24 * 3600.0


class Remover:
    """Removes folders of trials in a daemon thread: a network file system may not answer for hours.

    Their ``copies`` in object storage go with them, if there are any.
    """

    def __init__(self, copies: Copies | None = None) -> None:
        self._thread = threading.Thread()
        self._copies = copies

    def is_busy(self) -> bool:
        """Whether what was begun last has not ended."""
        return self._thread.is_alive()

    def begin(self, paths: Sequence[Path]) -> None:
        """Remove ``paths``, one after another, with all in them. Only one call at a time may be under way."""
        assert not self.is_busy()
        self._thread = threading.Thread(target=self._remove, args=(paths,), name="remover", daemon=True)
        self._thread.start()

    def _remove(self, paths: Sequence[Path]) -> None:
        _remove_all(paths)
        if self._copies is not None:
            for path in paths:
                self._remove_stored(self._copies, int(path.name))

    def _remove_stored(self, copies: Copies, trial_id: int) -> None:
        """Remove the copies of a trial, as soon as the storage lets us: the rows that name them are still there."""
        for num_failures in count(1):
            try:
                copies.remove(trial_id)
                return
            except (Unavailable, InvalidInput) as error:
                log.warning("checkpoints of a removed trial are still there, and removed later: %s", error)
            time.sleep(pause_seconds(num_failures))


@dataclass(slots=True)
class _Ageing:
    """Something that goes ``days`` after the end of its study, if they are not None."""

    days: float | None
    remove: Callable[[int], Iterator[None]]
    looks_at: float = -math.inf
    overdue: set[int] = field(default_factory=set)  # studies that were overdue at the last look
    removed: set[int] = field(default_factory=set)  # since this sweeper began


class Sweeper:
    """Does one step of each kind of work per ``tick``, and never waits for the file system of the checkpoints.

    ``clock`` returns seconds since the epoch, ``monotonic`` those since any moment. A wall clock may be wrong until the
    network has set it. So a study counts as old only if it was already overdue when this sweeper looked an hour before.
    Traces are made again, and need no such care.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        remover: Remover,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._removals, self._settings, self._remover = store, store.removals, settings, remover
        self._clock, self._monotonic = clock, monotonic
        self._checkpoints = _Ageing(settings.keep_checkpoints_days, self._checkpoints_of)
        remove_logs, remove_events = self._removals.remove_logs, self._removals.remove_events
        self._logs = _Ageing(settings.keep_logs_days, lambda study_id: _until_none(remove_logs, study_id))
        self._events = _Ageing(settings.keep_events_days, lambda study_id: _until_none(remove_events, study_id))
        self._traces_at = -math.inf
        self._rounds = (_Rounds(self._with_checkpoints, monotonic), _Rounds(self._without_checkpoints, monotonic))

    def tick(self) -> None:
        """Do one step of each kind, unless all of it was done a moment ago. Raises ``Unavailable`` and ``Deposed``."""
        for rounds in self._rounds:
            rounds.tick()

    def _with_checkpoints(self) -> Iterator[None]:
        """Checkpoints, and what waits for their removal."""
        while trials := self._removals.deleted_trials():
            yield from self._remove([trial_folder(self._settings.checkpoints, trial_id) for trial_id in trials])
            for trial_id in trials:
                while not self._removals.remove_trial(trial_id, limit=ROWS_AT_ONCE):
                    yield
                yield
        yield from self._aged(self._checkpoints)

    def _without_checkpoints(self) -> Iterator[None]:
        for study_id in self._removals.deleted_studies_with_events():
            yield from _until_none(self._removals.remove_events, study_id)
        for code in self._removals.remove_unused_code():  # no larger than an upload, and never on a shared file system
            folders = (self._settings.data_dir / "code", self._settings.data_dir / "profiles" / "code")
            _remove_all([folder / name for folder in folders for name in (code, f"{code}.zip")])
            yield
        yield from self._aged(self._logs)
        yield from self._aged(self._events)
        if self._settings.keep_traces_days is not None and self._monotonic() >= self._traces_at:
            self._traces_at = self._monotonic() + LOOK_SECONDS
            yield from self._traces(self._clock() - self._settings.keep_traces_days * DAY_SECONDS)

    def _remove(self, paths: Sequence[Path]) -> Iterator[None]:
        """Remove ``paths`` in the remover's thread; ends once they are gone."""
        while self._remover.is_busy():  # with what an interrupted round, or an earlier term, has begun
            yield
        self._remover.begin(paths)
        while self._remover.is_busy():
            yield

    def _aged(self, ageing: _Ageing) -> Iterator[None]:
        if ageing.days is None or self._monotonic() < ageing.looks_at:
            return
        overdue = set(self._removals.studies_ended_before(self._clock() - ageing.days * DAY_SECONDS))
        still_overdue, ageing.overdue = overdue & ageing.overdue, overdue
        ageing.looks_at = self._monotonic() + LOOK_SECONDS
        for study_id in sorted(still_overdue - ageing.removed):
            yield from ageing.remove(study_id)
            ageing.removed.add(study_id)

    def _checkpoints_of(self, study_id: int) -> Iterator[None]:
        return self._remove(
            [trial_folder(self._settings.checkpoints, trial.id) for trial in self._store.trials.history(study_id)]
        )

    def _traces(self, before: float) -> Iterator[None]:
        """Remove traces that no study has read since ``before``. A trace belongs to all studies with equal models."""
        for folder in sorted((self._settings.data_dir / "profiles" / "traces").glob("*/")):
            for file in folder.iterdir():
                if file.stat().st_mtime < before:
                    file.unlink(missing_ok=True)
            yield


class _Rounds:
    """Rounds of small steps, with a rest before each."""

    def __init__(self, begin: Callable[[], Iterator[None]], monotonic: Callable[[], float]) -> None:
        self._begin, self._monotonic = begin, monotonic
        self._steps: Iterator[None] = iter(())
        self._rests_until = monotonic()

    def tick(self) -> None:
        """Do one step, unless this rests."""
        if self._monotonic() < self._rests_until:
            return
        try:
            next(self._steps)
        except StopIteration:
            self._steps = self._begin()
            self._rests_until = self._monotonic() + REST_SECONDS
        except BaseException:
            self._steps = iter(())  # a generator that has raised has ended; the next one begins after a rest
            raise


def _until_none(remove: Callable[..., int], study_id: int) -> Iterator[None]:
    while remove(study_id, limit=ROWS_AT_ONCE):
        yield


def _remove_all(paths: Sequence[Path]) -> None:
    """Remove what exists of ``paths``; what cannot be removed is logged, and left to the operator."""
    for path in paths:
        try:
            untrusted.remove(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            log.warning("%s cannot be removed (%s); remove it by hand", path, error)
