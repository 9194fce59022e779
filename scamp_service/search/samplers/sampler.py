"""The interface of a sampler: what proposes the parameters of one trial from those of the earlier ones."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import ClassVar, Protocol, runtime_checkable

from scamp_service.search.history import Active, Observation
from scamp_service.study.spec import StudySpec
from scamp_service.study.values import Params


class Sampler(Protocol):
    """Proposes parameters of a study's trials. It is made from the study's spec alone.

    It has no state: a proposal depends on the spec, the trial's number and the trials that are shown, and on nothing
    else. So a controller that replaces a killed one proposes the same. It may keep results that it could compute again.
    """

    reads_history: ClassVar[bool]
    """Whether proposals depend on earlier trials. If not, none are shown."""

    needs_own_process: ClassVar[bool]
    """Whether it runs in a process of its own: it imports torch or a library that may hang, or is the user's code."""

    shows_most: ClassVar[int | None]
    """About how many earlier trials are shown; None for ``history.MOST_SHOWN``."""

    def __init__(self, spec: StudySpec) -> None: ...

    def suggest(
        self, number: int, completed: Sequence[Observation], active: Sequence[Active], attempt: int = 0
    ) -> Params | None:
        """The searched parameters of trial ``number``; None if there is nothing more to propose, from this number on.

        ``completed`` and ``active`` are earlier trials, by number. They also have the parameters that are not searched.
        ``attempt`` counts the proposals for this trial that break a constraint.
        """
        ...


@runtime_checkable
class Inheriting(Protocol):
    """A sampler whose candidates may begin with weights of earlier ones."""

    def parent(self, number: int, completed: Sequence[Observation], attempt: int = 0) -> int | None:
        """Number of the trial with whose weights the candidate begins that ``suggest`` returns for the same arguments.

        None: it begins anew.
        """
        ...


def seed_of(seed: int, number: int, attempt: int = 0) -> int:
    """Seed of the random generator for one trial, as the state of a generator would not survive a crash."""
    digest = hashlib.sha256((f"{seed}/{number}/{attempt}" if attempt else f"{seed}/{number}").encode()).digest()
    return int.from_bytes(digest[:4])
