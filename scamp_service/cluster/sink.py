"""The one actor that writes the reports of all ranks into the study database, and answers their questions about it.

It decides nothing: the store accepts or refuses a report by the attempt's token. The sink may die at any time. A rank
repeats a report until it is acknowledged, and a report that arrives twice counts once. It outlives its controllers. If
none comes back, it gives the cluster's devices back and ends.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from scamp_service.cluster import letters
from scamp_service.cluster.devices.pool_table import remove_pools
from scamp_service.errors import Unavailable
from scamp_service.host import Process, source_hash
from scamp_service.lifecycle import CONTROLLER_LEASE, Outcome
from scamp_service.model import Lease, Report

if TYPE_CHECKING:
    from scamp_service.store.store import Store

log = logging.getLogger("scamp.sink")

NAME = "sink"
ANSWER_SECONDS = 20.0
RETRY_SECONDS = 0.5
PAUSE_SECONDS = 5.0
LOOK_SECONDS = 1.0  # between two readings of the lease by the sink
UNCHANGED_SECONDS = 2.0  # after which the sink tries whether anybody can renew the lease
FRESH_SECONDS = 5.0  # for which the last reading of the lease counts
ABANDONED_SECONDS = 180.0
"""A sink whose database no controller leads for so long ends. Its ranks have ended before (see ``rank``)."""

PROBE = "sink"
"""Name of a lease that nobody holds for long: the sink takes it to see that the database can be written."""
WATCH = "watch"
"""Ray's concurrency group for questions that must be answered while reports wait for the database."""


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """A sink's process, the version of its sources, and whose it is, for people to read."""

    process: Process
    version: str
    owner: str


class Sink:
    """Writes reports into the study database, one call at a time. ``SinkActor`` is the process that ranks talk to."""

    def __init__(self, url: str, identity: str) -> None:
        """Answer for the study database at ``url``, whose name is ``identity``.

        The first call opens it. Calls raise ``Unavailable`` while it cannot be used: a sink that starts meanwhile says
        so, too, instead of ending.
        """
        self._url, self._identity = url, identity
        self._opening = threading.Lock()
        self._opened: Store | None = None
        self._seen: tuple[Lease | None, float] = None, time.monotonic()  # the lease, and since when it is unchanged
        place = url if url.startswith("sqlite") else "PostgreSQL"
        self._owner = f"the database {identity} ({place}) on {socket.gethostname()}"

    def started(self, trial_id: int, attempt: int, token: str) -> bool:
        """Record the start of an attempt; returns whether it may begin. Each rank asks before it trains."""
        return self._store.reports.start(trial_id, attempt, token, now=time.time())

    def flush(self, report: Report) -> bool:
        """Store a report; False when the attempt is stale."""
        return self._store.reports.add(report, now=time.time())

    def outcome(self, trial_id: int, attempt: int, token: str, outcome: Outcome, detail: str, phase: str = "") -> bool:
        """Store how an attempt ended, and the phase in which; False when the attempt is stale."""
        return self._store.reports.end(trial_id, attempt, token, outcome, detail, now=time.time(), phase=phase)

    def blob(self, sha256: str) -> bytes:
        """Zip of a study's own code, by its SHA-256. Raises ``NotFound``."""
        return self._store.blobs.get(sha256)

    def lease(self) -> Lease | None:
        """The lease of the controllers, read now. It changes at least every second while one of them leads.

        Raises ``Unavailable`` while nobody could renew it: an unchanged lease in a database that can only be read does
        not mean that nobody leads.
        """
        lease, now = self._store.leases.get(CONTROLLER_LEASE), time.monotonic()
        seen, since = self._seen
        if lease != seen:
            self._seen = lease, now
        elif now - since > UNCHANGED_SECONDS:
            self._store.leases.take(PROBE, self._owner, self._store.leases.get(PROBE), now=time.time())
        return lease

    def ping(self) -> SinkStatus:
        """The sink's process, the version of its sources, and the database that it writes to."""
        return SinkStatus(Process.current(), source_hash(), self._owner)

    @property
    def _store(self) -> Store:
        with self._opening:
            if self._opened is None:
                from scamp_service.store.store import Store  # not for ranks: they import this module for its client

                self._opened = Store(self._url)
            return self._opened


class SinkActor:
    """A sink as a detached Ray actor on the database's node. It ends its process once no controller leads.

    It takes letters alone, because Ray would unpickle any other argument.
    """

    def __init__(self, url: str, identity: str) -> None:
        """See ``Sink``."""
        self._sink, self._identity = Sink(url, identity), identity
        self._last: tuple[Lease | None, float] | None = None  # the lease as it was read last, and when
        threading.Thread(target=self._watch_lease, daemon=True).start()

    def answer(self, letter: bytes) -> Any:
        """Answer of the sink to what a rank tells or asks. Raises ``InvalidInput`` for anything but a letter."""
        method, args = letters.read(letter)
        return getattr(self._sink, method)(*args)

    def lease(self) -> Lease | None:
        """See ``Sink``."""
        return self._sink.lease()

    def ping(self) -> SinkStatus:
        """See ``Sink``."""
        return self._sink.ping()

    @ray.method(concurrency_group=WATCH)
    def last_lease(self) -> Lease | None:
        """The lease as it was a moment ago; answered at once, also while the database makes every report wait.

        Raises ``Unavailable`` when the lease could not be read in the last ``FRESH_SECONDS``, or nobody could renew it.
        """
        if self._last is None or time.monotonic() - self._last[1] > FRESH_SECONDS:
            raise Unavailable("the study database does not answer the sink, or cannot be written")
        return self._last[0]

    def _watch_lease(self) -> None:
        watch = LeaseWatch(ABANDONED_SECONDS)
        while not (watch.has_lapsed(self.look) and self.give_back()):
            time.sleep(min(LOOK_SECONDS, ABANDONED_SECONDS / 20))
        os._exit(0)

    def look(self) -> Lease | None:
        """Read the lease for ``last_lease``. Raises ``TimeoutError`` while that is not possible."""
        try:
            lease = self.lease()
        except Exception as error:  # while the database is away, nobody can lead, nor take over
            raise TimeoutError from error
        self._last = lease, time.monotonic()
        return lease

    def give_back(self) -> bool:
        """Whether the devices could be given back. If not, this thread tries again, unless a controller leads then."""
        log.warning("no controller leads any more: giving the devices back")
        try:
            remove_pools(self._identity)
        except Exception as error:  # Ray's GCS does not answer, for example
            log.warning("the devices cannot be given back now: %s", error)
            return False
        return True


class LeaseWatch:
    """Sees by its own clock whether anybody still leads: a lease that does not change for ``seconds`` has lapsed."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._seen: Lease | None = None
        self._changed = self._asked = clock()

    def has_lapsed(self, read: Callable[[], Lease | None]) -> bool:
        """Whether the lease that ``read`` returns has not changed for too long.

        Time in which ``read`` raises ``TimeoutError``, or in which nobody asked, does not count: this process may have
        been frozen together with the controller.
        """
        now = self._clock()
        paused = now - self._asked > self._seconds / 4
        self._asked = now
        try:
            lease = read()
        except TimeoutError:
            self._changed = now
            return False
        if lease != self._seen or paused:
            self._seen, self._changed = lease, now
        return now - self._changed > self._seconds


class Silence:
    """Sees by its own clock whether the sink has been silent for more than ``seconds``.

    Time in which nobody looked does not count: this process may have been frozen together with the sink.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._ended = self._looked = clock()

    def ends(self) -> None:
        """The sink has answered."""
        self._ended = self._clock()

    def is_too_long(self) -> bool:
        """Whether the silence has lasted too long. Somebody must look more often than every ``PAUSE_SECONDS``."""
        now = self._clock()
        if now - self._looked > PAUSE_SECONDS:
            self._ended = min(now, self._ended + now - self._looked)
        self._looked = now
        return now - self._ended > self._seconds


class SinkClient:
    """A rank's connection to the sink, which it finds by name. Calls are repeated until the sink answers."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._actor: Any = None

    def ask(self, method: str, *args: Any, give_up: Callable[[], bool] = lambda: False) -> Any:
        """Answer of the sink's ``method``. Raises ``TimeoutError`` when there is none and ``give_up()`` is True.

        Calls are repeated while the sink or its database cannot be reached. Any other error that the sink itself
        raises would be raised again by every repetition, and is passed on.
        """
        while True:
            try:
                return self.try_once(method, *args)
            except ray.exceptions.RayTaskError as error:
                if not is_waiting(error):
                    raise
                if give_up():
                    raise TimeoutError(f"the sink cannot store anything: {error.cause}") from error
                time.sleep(RETRY_SECONDS)
            except (ray.exceptions.RayError, ValueError, ray.exceptions.GetTimeoutError) as error:
                self._actor = None
                if give_up():
                    raise TimeoutError(f"the sink does not answer: {error}") from error
                time.sleep(RETRY_SECONDS)

    def try_once(self, method: str, *args: Any) -> Any:
        """Answer of the sink's ``method`` within ``ANSWER_SECONDS``. Raises ``RayError`` or ``ValueError``: no sink."""
        if self._actor is None:
            self._actor = ray.get_actor(NAME, self._namespace)  # ValueError when there is none
        if args:
            return ray.get(self._actor.answer.remote(letters.letter(method, *args)), timeout=ANSWER_SECONDS)
        return ray.get(getattr(self._actor, method).remote(), timeout=ANSWER_SECONDS)


def is_waiting(error: Exception) -> bool:
    """Whether the sink has answered that it waits for its database, which is away, locked, full or read-only."""
    return isinstance(error, ray.exceptions.RayTaskError) and isinstance(error.cause, (Unavailable, OSError))


def ensure_sink(url: str, identity: str, node_id: str, namespace: str) -> Any:
    """Actor handle of the sink, which is created if it does not run. It stays on ``node_id``, next to the database."""
    remote: Any = ray.remote  # its types do not know concurrency groups
    return (
        remote(concurrency_groups={WATCH: 1})(SinkActor)
        .options(**one_on_node(node_id, NAME, namespace))
        .remote(url, identity)
    )


def one_on_node(node_id: str, name: str, namespace: str) -> dict[str, Any]:
    """Ray's options of the one actor with this name, which is made on the node unless it runs."""
    return {
        "name": name,
        "namespace": namespace,
        "lifetime": "detached",
        "get_if_exists": True,
        "num_cpus": 0,
        "max_restarts": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False),
    }
