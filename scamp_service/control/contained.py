"""The last errors that a controller survived: each concerned one effect or one cycle, and was logged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from scamp_service.store.recorded_cluster import ContainedError

MOST = 10
MOST_CHARACTERS = 500


class ContainedErrors:
    """The last ``MOST`` different errors. The same one again is counted, and becomes the newest."""

    def __init__(self, recorded: Iterable[ContainedError] = ()) -> None:
        """``recorded`` are those of the controller before."""
        self._errors = list(recorded)

    @property
    def recent(self) -> tuple[ContainedError, ...]:
        """The errors, the newest last."""
        return tuple(self._errors)

    def add(self, doing: str, error: Exception, study_id: int, now: float) -> None:
        """Count an error."""
        new = ContainedError(doing, f"{type(error).__name__}: {error}"[:MOST_CHARACTERS], study_id, now, now)
        for old in self._errors:
            if (old.doing, old.error, old.study_id) == (new.doing, new.error, new.study_id):
                self._errors.remove(old)
                new = replace(old, last_at=now, times=old.times + 1)
                break
        self._errors = [*self._errors, new][-MOST:]
