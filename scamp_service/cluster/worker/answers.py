"""Answers of a rank to the executor: its state, and how an attempt ended on it. Plain values that know no Ray."""

from __future__ import annotations

from dataclasses import dataclass, field

from scamp_service.host import Process
from scamp_service.lifecycle import Outcome


@dataclass(frozen=True, slots=True)
class RankStatus:
    """State of a rank process. ``key`` is its attempt, empty when it is idle; ``others`` share the process with
    it as a ``pack``. ``version`` is that of its sources.

    ``code`` is the archive of user code that it has run, the only one that it may ever run; None: none yet.
    ``num_signs`` grows as long as training continues, and ``doing`` says what it does right now.
    """

    process: Process
    key: str
    rank: int
    world: int
    reusable: bool
    version: str = ""
    code: str | None = None
    num_signs: int = 0
    doing: str = ""
    others: tuple[str, ...] = ()
    pack: str = ""

    @property
    def keys(self) -> tuple[str, ...]:
        """All its attempts."""
        return (self.key, *self.others) if self.key else ()


@dataclass(frozen=True, slots=True)
class Ended:
    """How the attempt ``key``, or the only one, ended on this rank.

    ``outcome`` is None when this rank does not know the cause.

    The process is about to end unless it is ``reusable``; after an attempt that went well, ``detail`` says why.
    """

    outcome: Outcome | None
    detail: str
    reusable: bool
    key: str = field(default="", compare=False)
