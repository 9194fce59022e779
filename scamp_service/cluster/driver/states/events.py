"""Events that the state machine of ranks handles: orders, what was seen of the cluster, and answers of ranks.

The time of an event, and whether the controller may act, are given separately: see ``RankStates.handle``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from scamp_service.cluster.worker.answers import Ended, RankStatus
from scamp_service.control.executor import Order
from scamp_service.host import Process


class Call(StrEnum):
    """A call to a rank whose answer is awaited."""

    STATUS = "STATUS"
    RUN = "RUN"  # an attempt; also to join one that runs
    HOLD = "HOLD"  # stays open, so that Ray reports the death of the process at once
    KILL = "KILL"  # a task on the rank's host that kills its process


@dataclass(frozen=True, slots=True)
class Node:
    """The devices of one node that can be used now, as MiB by id, its address and its number of processor cores."""

    ip: str
    num_cpus: int
    devices: Mapping[str, int]


# --- orders -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LaunchOrdered:
    """The controller wants this attempt to run. ``nodes`` are those of ``order.devices``, in the same order."""

    order: Order
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class StopOrdered:
    """The controller wants this attempt (``trial/attempt``) to stop.

    Its ranks write a checkpoint first if they can do so in ``keep_seconds``, unless these are 0.
    """

    key: str
    keep_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class EndOrdered:
    """Every rank is to end."""


# --- what was seen ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RankFound:
    """A rank of an earlier controller has this name."""

    name: str
    device: str


@dataclass(frozen=True, slots=True)
class Looked:
    """Time has passed: several times a second. ``gone`` names ending ranks whose processes on this host are gone."""

    nodes: tuple[Node, ...]
    gone: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ProbeDue:
    """Time to ask the ranks how they are: about once a second."""


@dataclass(frozen=True, slots=True)
class Paused:
    """The controller's process stood still for this many seconds: silence during them does not count."""

    seconds: float


@dataclass(frozen=True, slots=True)
class NodesSeen:
    """``alive`` maps the names of living nodes, as in ids of devices, to Ray's node ids; ``drained`` nodes were stopped
    in order."""

    alive: Mapping[str, str]
    drained: frozenset[str]


@dataclass(frozen=True, slots=True)
class DevicesLeft:
    """Devices that have left the cluster."""

    devices: tuple[str, ...]
    why: str


# --- answers of one rank ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer about the rank with this name."""

    name: str


@dataclass(frozen=True, slots=True)
class StartFailed(_Answer):
    """Ray has refused to start the rank, so there is no process."""

    error: str


@dataclass(frozen=True, slots=True)
class StatusArrived(_Answer):
    """The rank says how it is. ``is_here`` means that its process is one of this host."""

    status: RankStatus
    is_here: bool


@dataclass(frozen=True, slots=True)
class AttemptEnded(_Answer):
    """The rank's attempt has ended on it."""

    ended: Ended


@dataclass(frozen=True, slots=True)
class HoldEnded(_Answer):
    """The call that was held open has returned in order."""


@dataclass(frozen=True, slots=True)
class KillAnswered(_Answer):
    """A task on the rank's host has killed the process, and says whether it is gone."""

    is_gone: bool


@dataclass(frozen=True, slots=True)
class ProcessFound(_Answer):
    """The process of a rank that never answered is this one, on this host."""

    process: Process


@dataclass(frozen=True, slots=True)
class CallFailed(_Answer):
    """Ray answers a call with this error: the rank is dead, or for ``Call.RUN`` maybe another rank of its gang.

    ``stderr`` is the end of what its process has written there, if it is one of this host.
    """

    call: Call
    error: str
    stderr: str = ""


@dataclass(frozen=True, slots=True)
class CallUnavailable(_Answer):
    """The rank cannot be reached for now; it is not known to be dead."""

    call: Call


@dataclass(frozen=True, slots=True)
class CallRefused(_Answer):
    """The rank obeys the controller of a later term."""

    call: Call


Answer = (
    StartFailed
    | StatusArrived
    | AttemptEnded
    | HoldEnded
    | KillAnswered
    | ProcessFound
    | CallFailed
    | CallUnavailable
    | CallRefused
)
Event = (
    LaunchOrdered | StopOrdered | EndOrdered | RankFound | Looked | ProbeDue | Paused | NodesSeen | DevicesLeft | Answer
)
