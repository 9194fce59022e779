"""The last errors that a controller survived: each concerned one effect or one cycle, and was logged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from scamp_service.model import Json

MOST = 10
MOST_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class Contained:
    """One error. ``doing`` says in words what failed, ``first_at`` and ``last_at`` are seconds since the epoch.

    ``study_id`` is 0 where it concerns no study alone.
    """

    doing: str
    error: str
    study_id: int
    first_at: float
    last_at: float
    times: int = 1


class ContainedErrors:
    """The last ``MOST`` different errors. The same one again is counted, and becomes the newest."""

    def __init__(self, recorded: Iterable[Json] = ()) -> None:
        """``recorded`` are those of the controller before, as ``to_json`` gave them."""
        self._errors = [Contained(**entry) for entry in recorded]

    def add(self, doing: str, error: Exception, study_id: int, now: float) -> None:
        """Count an error."""
        new = Contained(doing, f"{type(error).__name__}: {error}"[:MOST_CHARACTERS], study_id, now, now)
        for old in self._errors:
            if (old.doing, old.error, old.study_id) == (new.doing, new.error, new.study_id):
                self._errors.remove(old)
                new = replace(old, last_at=now, times=old.times + 1)
                break
        self._errors = [*self._errors, new][-MOST:]

    def to_json(self) -> list[Json]:
        """The errors as JSON, the newest last."""
        return [asdict(error) for error in self._errors]
