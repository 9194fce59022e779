"""Decides which of several controllers leads, by a lease in the database, without comparing any clocks.

The leader renews its lease, which changes a counter. A standby that sees no change for ``seconds`` of its own clock
takes the lease, which raises the ``term``. So neither a jump of a clock nor clocks that differ can make two leaders.
Each write of a leader names its term and is refused once there is a newer one (``Store.fenced``), and so is each call
to a rank.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Protocol

from scamp_service.errors import Deposed, Unavailable
from scamp_service.host import Process
from scamp_service.lifecycle import CONTROLLER_LEASE
from scamp_service.model import Lease
from scamp_service.store.parts.leases import Leases

RENEWALS = 10
"""Times that a leader renews its lease while a standby waits for it to lapse."""
FAILED_BEGINNINGS = 3
"""Beginnings of a term that may fail in a row before another controller gets its turn."""


class Leadership:
    """One controller's part in the election. Threads may share it.

    ``seconds`` is how long a standby waits for a silent leader. ``clock`` is monotonic. ``wall_clock`` dates renewals,
    for people to read; by default it is that of the database. ``is_gone`` says of a holder whether its process is known
    to have ended, so that nobody needs to wait.
    """

    def __init__(
        self,
        leases: Leases,
        seconds: float,
        *,
        holder: str = "",
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float],
        is_gone: Callable[[str], bool] | None = None,
    ) -> None:
        self.holder = holder or own_name()
        self._leases, self._seconds, self._clock, self._wall_clock = leases, seconds, clock, wall_clock
        self._is_gone = is_gone or process_is_gone
        self._lock = threading.Lock()
        self._lease: Lease | None = None
        self._renewed = 0.0  # when the last successful renewal began
        self._seen: tuple[Lease | None, float] | None = None
        self._waits_until = -math.inf  # another controller takes the lease first

    def keep(self) -> Lease | None:
        """Renew the lease if it is time, or take it if it is free. Returns it if this controller leads now.

        Call it ``RENEWALS`` times or more in ``seconds``. Raises ``Unavailable``.
        """
        with self._lock:
            now = self._clock()
            if self._lease is None:
                self._stand_by(now)
            elif now - self._renewed >= self._seconds / RENEWALS:
                self._lease = self._leases.renew(CONTROLLER_LEASE, self._lease, now=self._wall_clock())
                self._renewed = now
            return self._lease

    def renew(self) -> None:
        """Renew the lease if this controller leads. Raises ``Unavailable``."""
        if self._lease is not None:
            self.keep()

    def is_certain(self) -> bool:
        """Whether no other controller can lead now: the last renewal is too young for anybody to have waited long."""
        return self._lease is not None and self._clock() - self._renewed < self._seconds

    def step_down(self) -> None:
        """Forget the lease, because another controller has taken it."""
        with self._lock:
            self._lease, self._seen = None, None

    def resign(self) -> None:
        """Release the lease, so that another controller can take it at once."""
        with self._lock:
            if self._lease is not None:
                self._leases.release(CONTROLLER_LEASE, self._lease)
            self._lease = None

    def let_another(self) -> None:
        """Release the lease, and leave it to any other controller for ``seconds``."""
        self._waits_until = self._clock() + self._seconds
        self.resign()

    def _stand_by(self, now: float) -> None:
        if now < self._waits_until:
            return
        seen = self._leases.get(CONTROLLER_LEASE)
        if self._seen is None or self._seen[0] != seen:
            self._seen = seen, now
        silent = now - self._seen[1]
        if seen is None or not seen.holder or silent >= self._seconds or self._is_gone(seen.holder):
            self._lease = self._leases.take(CONTROLLER_LEASE, self.holder, seen, now=self._wall_clock())
            self._renewed = now


class Leader(Protocol):
    """Everything that a process does while it leads, from one election to the next."""

    def tick(self) -> None:
        """Run one cycle. Raises ``Deposed`` once another controller leads."""
        ...

    def close(self) -> None:
        """Let go of everything, and change nothing: another controller may lead already."""
        ...

    def end(self) -> None:
        """End everything that was started, then let go."""
        ...


class LeaderElection:
    """Runs one cycle per ``tick`` while this process leads; otherwise it stands by.

    ``begin`` is called after each election with the new lease, so nothing that it makes knows of an earlier term.
    """

    def __init__(self, leadership: Leadership, begin: Callable[[Lease], Leader]) -> None:
        self._leadership, self._begin = leadership, begin
        self._leader: tuple[int, Leader] | None = None
        self._num_failed = 0  # beginnings in a row

    @property
    def leads(self) -> bool:
        """Whether this process has led in the last cycle."""
        return self._leader is not None

    def tick(self) -> None:
        """Take part in the election; run one cycle if it is won. Raises ``Unavailable``, and any error of a beginning.

        A controller that cannot begin ``FAILED_BEGINNINGS`` times in a row lets another one lead.
        """
        lease = self._leadership.keep()
        if self._leader is not None and (lease is None or lease.term != self._leader[0]):
            self.close()
        if lease is None:
            return
        if self._leader is None:
            self._leader = lease.term, self._begun(lease)
        try:
            self._leader[1].tick()
        except Deposed:
            self._leadership.step_down()
            self.close()

    def _begun(self, lease: Lease) -> Leader:
        try:
            leader = self._begin(lease)
        except Exception:
            self._num_failed += 1
            if self._num_failed >= FAILED_BEGINNINGS:
                with contextlib.suppress(Unavailable):  # the next failure tries again
                    self._leadership.let_another()
                    self._num_failed = 0
            raise
        self._num_failed = 0
        return leader

    def close(self) -> None:
        """Let go of what this leader started, if this process leads; it continues without us."""
        leader, self._leader = self._leader, None
        if leader is not None:
            leader[1].close()

    def end(self) -> None:
        """End what this leader started, if this process leads."""
        leader, self._leader = self._leader, None
        if leader is not None:
            leader[1].end()


def own_name() -> str:
    """Name of this process as the holder of a lease. A host's name is there for people to read."""
    process = Process.current()
    return f"{socket.gethostname()} {process.kernel} {process.pid} {process.started} {secrets.token_hex(4)}"


def process_is_gone(holder: str) -> bool:
    """Whether ``holder`` is the name of a process that is known to have ended."""
    fields = holder.split(" ")
    return len(fields) == 5 and fields[2].isdigit() and Process(fields[1], int(fields[2]), fields[3]).is_gone
