"""What the executor knows of one rank process and of one gang, and when a process has certainly ended."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from scamp_service.cluster.worker.rank import RankStatus

GONE_SECONDS = 15.0  # after Ray reports the death of a process on another host, where its word is enough
ORPHANED_SECONDS = 15.0  # on a host that is cut off, in addition to the silence after which a rank ends itself


class Phase(StrEnum):
    """Life of a rank process, as the executor sees it."""

    FOUND = "FOUND"  # left by an earlier controller; what it does is not known yet
    STARTING = "STARTING"
    READY = "READY"
    ENDING = "ENDING"  # killed or dead; its process may still hold memory


@dataclass(eq=False)
class RankHandle:
    """A rank process as the executor sees it. ``key`` is the attempt that it works for, empty when it is idle.

    ``code`` is the archive of user code that it has run; None: none yet, so that it may run any. Times are monotonic
    seconds. ``asked`` is when the oldest question without an answer was asked, ``answered`` the time of the last
    answer. ``is_known`` is False as long as nobody can say which attempt it runs.
    """

    name: str
    device: str
    actor: Any
    phase: Phase = Phase.STARTING
    status: RankStatus | None = None
    key: str = ""
    code: str | None = None
    since: float = field(default_factory=time.monotonic)  # idle since; ENDING: since it was killed or found dead
    dead: bool = False  # according to Ray
    is_known: bool = True
    asked: float | None = None
    answered: float = 0.0
    progressed: float = field(default_factory=time.monotonic)
    heard: float = field(default_factory=time.monotonic)  # time of the last answer, or of the creation of this object
    is_being_killed: bool = False  # by a task on its host, which has not answered yet
    is_gone: bool = False  # according to that task


@dataclass(eq=False)
class GangRecord:
    """State of a gang that its ranks do not hold. A gang exists as long as a rank has its key.

    ``broken`` says why the gang must be stopped; empty while every rank lives. ``is_recorded`` means that a rank has
    stored the outcome.
    """

    broken: str = ""
    is_recorded: bool = False
    stopping_since: float | None = None


def has_ended(rank: RankHandle, may_trust_ray: bool, lease_seconds: float, now: float) -> bool:
    """Whether the process of a killed or dead rank has certainly ended: it was seen here, or by a task on its host.

    Nobody can ask a host that is cut off, which Ray notices late, and Ray calls an actor dead as soon as it is to be
    killed. But the ranks of such a host end themselves when they have not reached the sink for ``lease_seconds``, and
    while they reached it, they also answered us. If the sink is cut off with them, it can only say that it waits for
    its database, which does not count without an answer of Ray's GCS. So Ray's word is enough (``may_trust_ray``) only
    for a rank that has not begun to train, or whose node has left in order.
    """
    if rank.status is not None and rank.status.process.is_here:
        return rank.status.process.is_gone
    if may_trust_ray and rank.dead and now - rank.since > GONE_SECONDS:
        return True
    return rank.is_gone or (rank.dead and now - rank.heard > lease_seconds + ORPHANED_SECONDS)


def lives_here(rank: RankHandle) -> bool:
    """Whether the process is one of this host and has not ended."""
    return rank.status is not None and rank.status.process.is_here and not rank.status.process.is_gone
