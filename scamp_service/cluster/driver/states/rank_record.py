"""The state of one rank process as the executor knows it, and when a process has certainly ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from scamp_service.cluster.worker.answers import RankStatus

GONE_SECONDS = 15.0  # after Ray reports the death of a process on another host, where its word is enough
ORPHANED_SECONDS = 15.0  # on a host that is cut off, in addition to the silence after which a rank ends itself


class RankPhase(StrEnum):
    """Life of a rank process, as the executor sees it: FOUND or STARTING, then READY, then ENDING, then forgotten."""

    FOUND = "FOUND"  # left by an earlier controller; what it does is not known yet
    STARTING = "STARTING"
    READY = "READY"
    ENDING = "ENDING"  # killed or dead; its process may still hold memory


@dataclass(eq=False, slots=True)
class RankRecord:
    """State of a rank process. ``keys`` are the attempts that it works for, with the MiB that each has reserved for it;
    none when it is idle, and several if they share it as a ``pack``.

    MiB are 0 where an earlier controller has launched the attempt; ``last_mib`` are those of the last one that ended.
    ``code`` is the archive of user code that it has run; None: none yet, so that it may run any. Times are seconds of
    one monotonic clock. ``asked_at`` is when the oldest question without an answer was asked, ``answered`` the time of
    the last answer, if any. ``is_known`` is False as long as nobody can say which attempt it runs.
    """

    name: str
    device: str
    phase: RankPhase
    since: float  # idle since; ENDING: since it was killed or found dead
    progressed: float
    heard: float  # time of the last answer, or of the creation of this object
    status: RankStatus | None = None
    is_here: bool = False  # its process is one of this host
    keys: dict[str, int] = field(default_factory=dict)
    last_mib: int = 0
    pack: str = ""
    code: str | None = None
    dead: bool = False  # according to Ray
    is_known: bool = True
    asked_at: float | None = None
    answered: float | None = None
    is_being_killed: bool = False  # by a task on its host, which has not answered yet
    is_gone: bool = False  # its process was seen to be gone: here, or by that task

    @property
    def mib(self) -> int:
        """MiB that its attempts have reserved for it, or the last one had."""
        return sum(self.keys.values()) or self.last_mib

    @property
    def node(self) -> str:
        """The name of its node, as in the ids of devices."""
        return self.device.split("/", 1)[0]

    @property
    def is_done(self) -> bool:
        """Whether it was told to end and Ray calls it dead: calls to it are in vain, but its process may still live."""
        return self.phase is RankPhase.ENDING and self.dead

    def hear(self, status: RankStatus, *, is_here: bool, now: float) -> None:
        """Note how it is. Only another attempt, or a new sign of training, is progress."""
        before = self.status
        self.status, self.is_here, self.answered, self.heard = status, is_here, now, now
        if before is None or (before.keys, before.num_signs) != (status.keys, status.num_signs):
            self.progressed = now

    def excuse(self, seconds: float) -> None:
        """Give it this many more seconds to answer and to make progress."""
        self.asked_at = self.asked_at + seconds if self.asked_at is not None else None
        self.progressed += seconds
        self.heard += seconds


def has_ended(rank: RankRecord, may_trust_ray: bool, lease_seconds: float, now: float) -> bool:
    """Whether the process of a killed or dead rank has certainly ended: it was seen here, or by a task on its host.

    Nobody can ask a host that is cut off, which Ray notices late, and Ray calls an actor dead as soon as it is to be
    killed. But the ranks of such a host end themselves when they have not reached the sink for ``lease_seconds``, and
    while they reached it, they also answered us. If the sink is cut off with them, it can only say that it waits for
    its database, which does not count without an answer of Ray's GCS. So Ray's word is enough (``may_trust_ray``) only
    for a rank that has not begun to train, or whose node has left in order.
    """
    if rank.is_gone or rank.is_here:
        return rank.is_gone
    if may_trust_ray and rank.dead and now - rank.since > GONE_SECONDS:
        return True
    return rank.dead and now - rank.heard > lease_seconds + ORPHANED_SECONDS
