"""Instructions that the state machine of ranks gives: each is one act, and every kill is repeated until it shows."""

from __future__ import annotations

from dataclasses import dataclass

from scamp_service.control.executor import Order
from scamp_service.host import Process


@dataclass(frozen=True, slots=True)
class _ToRank:
    """An instruction about the rank with this name."""

    name: str

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)


@dataclass(frozen=True, slots=True)
class StartRank(_ToRank):
    """Start a rank with this name on a device."""

    device: str


@dataclass(frozen=True, slots=True)
class RunAttempt:
    """Run an attempt on these ranks, given in the order of their numbers.

    ``host`` is the address at which the first one opens the gang's store; None for a single rank.
    """

    names: tuple[str, ...]
    order: Order
    host: str | None


@dataclass(frozen=True, slots=True)
class JoinAttempt(_ToRank):
    """Wait for the end of an attempt that the rank runs already."""

    key: str


@dataclass(frozen=True, slots=True)
class StopAttempt(_ToRank):
    """Ask the rank to stop its attempt after the current step; no answer is awaited. ``keep``: with a checkpoint."""

    key: str
    keep: bool = False


@dataclass(frozen=True, slots=True)
class AskStatus(_ToRank):
    """Ask the rank how it is."""


@dataclass(frozen=True, slots=True)
class HoldCall(_ToRank):
    """Open a call that the rank only holds, so that its error reports the rank's death at once."""


@dataclass(frozen=True, slots=True)
class FindProcess(_ToRank):
    """Find the process of a rank that never answered. It is reported if it is on this host, and killed on another."""


@dataclass(frozen=True, slots=True)
class KillActor(_ToRank):
    """Have Ray kill the rank. Ray only asks the process to end, and a stuck one does not."""


@dataclass(frozen=True, slots=True)
class KillProcess(_ToRank):
    """Send SIGKILL to the rank's process on this host."""

    process: Process


@dataclass(frozen=True, slots=True)
class KillProcessOn(_ToRank):
    """Send SIGKILL to the rank's process by a task on its node, which answers whether it is gone."""

    process: Process
    node_id: str


@dataclass(frozen=True, slots=True)
class ForgetRank(_ToRank):
    """The rank's process is gone: nothing will be asked of it again."""


Instruction = (
    StartRank
    | RunAttempt
    | JoinAttempt
    | StopAttempt
    | AskStatus
    | HoldCall
    | FindProcess
    | KillActor
    | KillProcess
    | KillProcessOn
    | ForgetRank
)
