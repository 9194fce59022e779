"""How long studies have run: seconds in which a controller has led them, by a clock that never jumps.

They lie in the database, and are stored now and then: a controller that is killed loses ``STORE_SECONDS`` at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container

from scamp_service.model import Study
from scamp_service.store.parts.studies import Studies

STORE_SECONDS = 10.0


class Ran:
    """Seconds that each live study has run. ``monotonic`` gives seconds."""

    def __init__(self, studies: Studies, monotonic: Callable[[], float]) -> None:
        self._studies, self._monotonic = studies, monotonic
        self._began: dict[int, float] = {}  # study → when it would have begun, had it run without a pause since
        self._stored_at = -math.inf

    def seconds(self, study: Study) -> float:
        """Seconds that the study has run until now; they count from the first time that this is asked."""
        now = self._monotonic()
        return now - self._began.setdefault(study.id, now - study.ran_seconds)

    def store(self) -> None:
        """Store the seconds of all live studies, if that is due."""
        if self._began and self._monotonic() - self._stored_at >= STORE_SECONDS:
            self._stored_at = self._monotonic()
            self.store_those(list(self._began))

    def store_those(self, study_ids: list[int]) -> None:
        """Store the seconds of these studies."""
        now = self._monotonic()
        self._studies.note_ran(
            {study_id: now - self._began[study_id] for study_id in study_ids if study_id in self._began}
        )

    def forget_ended(self, live: Container[int]) -> None:
        """Keep only the studies in ``live``."""
        self._began = {study_id: began for study_id, began in self._began.items() if study_id in live}
