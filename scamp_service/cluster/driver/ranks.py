"""The rank processes that an executor knows, and the gangs that they form: who is idle, silent, broken or gone.

Calls to ranks are sent here and their answers taken, but nothing waits for one. A rank that does not answer is ended
after a while, and until its process is known to be gone its device is closed.
"""

from __future__ import annotations

import logging
import secrets
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray

from scamp_service.cluster.devices.pools import Pool
from scamp_service.cluster.driver.calls import Calls
from scamp_service.cluster.driver.idle_ranks import suitable, superfluous
from scamp_service.cluster.driver.rank_handle import GangRecord, Phase, RankHandle, has_ended, lives_here
from scamp_service.cluster.driver.rank_processes import (
    end_process,
    is_of_ray,
    kill_rank,
    nodes_of_host,
    on_node,
    process_of,
)
from scamp_service.cluster.driver.start_failures import StartFailures
from scamp_service.cluster.worker.attempt import Ended
from scamp_service.cluster.worker.rank import RankStatus
from scamp_service.control.executor import GangState, GangStatus, Order
from scamp_service.errors import Deposed
from scamp_service.host import Process, source_hash
from scamp_service.lifecycle import Outcome

log = logging.getLogger("scamp.ray")

HOLD_SECONDS = 60.0
STOP_GRACE_SECONDS = 5.0
PROBE_SECONDS = 5.0  # between two questions to a rank how it is
SILENT_SECONDS = 30.0  # after which a rank that does not answer is ended
START_SECONDS = 120.0  # the same for one that has never answered
PUT_OFF_SECONDS = 1.0  # for which a launch that was put off keeps spare ranks from starting


class Ranks:
    """Rank processes and gangs. Not thread-safe: its owner holds a lock. ``now`` is always a monotonic time."""

    def __init__(
        self,
        create: Callable[[str, str], Any],
        calls: Calls,
        *,
        node_id: str,
        epoch: int,
        may_act: Callable[[], bool],
        lease_seconds: float,
        max_per_device: int,
    ) -> None:
        """``create`` makes the actor of a rank with a name on a device. Ranks start and end only while ``may_act()``.

        ``node_id`` is this node, ``lease_seconds`` the silence after which ranks end themselves.
        """
        self._create, self._calls, self._node_id, self._epoch = create, calls, node_id, epoch
        self._may_act, self._lease_seconds, self._max_per_device = may_act, lease_seconds, max_per_device
        self.known: dict[str, RankHandle] = {}  # by name
        self._gangs: defaultdict[str, GangRecord] = defaultdict(GangRecord)
        self._found: dict[str, int] = {}  # gang of an earlier controller → number of its ranks
        self._failures = StartFailures()
        self._alive: Mapping[str, str] = {}  # living nodes: name in device ids → node id
        self._drained: frozenset[str] = frozenset()  # nodes that were stopped in order
        self._put_off_until = 0.0

    # --- what exists now --------------------------------------------------------------------------------------------

    def gangs(self, now: float) -> dict[str, GangStatus]:
        """Status of every attempt that has a rank, and until it is stopped of one that only this object knows to be
        broken."""
        keys = {rank.key for rank in self.known.values() if rank.key}
        keys |= {key for key, gang in self._gangs.items() if gang.broken and not gang.is_recorded}
        return {key: self._gang_status(key, now) for key in sorted(keys)}

    def members(self, key: str) -> list[RankHandle]:
        """Ranks of a gang."""
        return [rank for rank in self.known.values() if rank.key == key]

    def silent(self) -> frozenset[str]:
        """Devices with a rank of which nobody knows what it does."""
        return frozenset(rank.device for rank in self.known.values() if not rank.is_known)

    def closed(self) -> dict[str, str]:
        """Devices on which nothing new may start now, and why."""
        silent = dict.fromkeys(self.silent(), "a rank does not answer; its process is being ended")
        return {**self._failures.closed(), **silent}

    def any_live_here(self) -> bool:
        """Whether a rank process of this host has not ended."""
        return any(map(lives_here, self.known.values()))

    def _gang_status(self, key: str, now: float) -> GangStatus:
        gang = self._gangs[key]
        if gang.stopping_since is not None:
            return GangStatus(GangState.STOPPING, gang.broken)
        if gang.broken:
            return GangStatus(GangState.BROKEN, gang.broken)
        members = self.members(key)
        quiet_seconds = now - max(rank.progressed for rank in members)
        doing = [f"rank {rank.status.rank} {rank.status.doing}" for rank in members if rank.status and rank.status.key]
        return GangStatus(GangState.ALIVE, "", max(0.0, quiet_seconds), "; ".join(doing))

    # --- what is asked for ------------------------------------------------------------------------------------------

    def launch(self, order: Order, places: Sequence[Pool], now: float) -> None:
        """Start an attempt, whose devices lie in ``places``. No effect when it exists or another controller may lead.

        It is put off while a node starts other ranks.
        """
        if not self._may_act() or self.members(order.key):
            return
        code, where = order.candidate.code, list(zip(order.devices, places, strict=True))
        if not all(suitable(self._idle(device), code) or self._may_start(pool, device, now) for device, pool in where):
            self._put_off_until = now + PUT_OFF_SECONDS
            return
        self._gangs[order.key] = GangRecord()
        ranks = [
            next(iter(suitable(self._idle(device), code)), None) or self._start_instead(device, now)
            for device in order.devices
        ]
        for rank in ranks:
            rank.key, rank.code, rank.progressed = order.key, code, now
        rendezvous = None
        if len(ranks) > 1:
            ips = [pool.node_ip for pool in places]
            host = "127.0.0.1" if len(set(ips)) == 1 else ips[0]
            rendezvous = ranks[0].actor.rendezvous.remote(order.key, len(ranks), host, self._epoch)
        for number, rank in enumerate(ranks):  # none of these waits: Ray queues calls to a rank that is starting
            self._calls.expect("run", rank, rank.actor.run.remote(order, number, rendezvous, self._epoch))

    def stop(self, key: str, now: float) -> None:
        """Ask the ranks of an attempt to stop; they are killed if the gang is broken or they take too long."""
        gang = self._gangs[key]
        if gang.stopping_since is not None:
            return
        gang.stopping_since = now
        if not (members := self.members(key)):
            del self._gangs[key]
        for rank in members:
            if gang.broken:  # the remaining ranks hang in a collective
                self._end(rank, now)
            else:
                rank.actor.stop.remote(key, self._epoch)

    def start(self, device: str, now: float) -> RankHandle:
        """Start a rank on a device, for no attempt yet."""
        name = f"rank/{device}/{secrets.token_hex(4)}"
        rank = self.known[name] = RankHandle(name, device, self._create(name, device))
        self._ask(rank, now)
        return rank

    def _start_instead(self, device: str, now: float) -> RankHandle:
        """Start a rank, in place of an idle one that has run other user code if the device has no room for both."""
        others = [rank for rank in self._idle(device) if rank.code is not None and rank.phase is Phase.READY]
        if others and len(self._on(device)) >= self._max_per_device:
            self._end(others[0], now)
        return self.start(device, now)

    def find(self, name: str, actor: Any, now: float) -> None:
        """Ask a rank of an earlier controller what it does."""
        device = name.split("/", 1)[1].rpartition("/")[0]
        rank = self.known[name] = RankHandle(name, device, actor, Phase.FOUND, is_known=False)
        self._ask(rank, now)

    def end_all(self, now: float) -> None:
        """End every rank."""
        for rank in self.known.values():
            self._end(rank, now)

    def follow_nodes(self, alive: Mapping[str, str], drained: frozenset[str]) -> None:
        """Learn which nodes live (name in device ids → node id), and which were stopped in order."""
        self._alive, self._drained = alive, drained

    def leave(self, devices: Sequence[str], why: str, now: float) -> None:
        """Break the gangs on devices that have left the cluster, and end their ranks."""
        for rank in [rank for rank in self.known.values() if rank.device in devices]:
            self._break(rank.key, why)
            self._end(rank, now)

    # --- what becomes of ranks ---------------------------------------------------------------------------------------

    def maintain(self, pools: Sequence[Pool], now: float) -> None:
        """End who is silent, incomplete or too slow to stop; forget who is gone; keep spare ranks on free devices."""
        self._end_silent(now)
        self._break_incomplete()
        for key, gang in list(self._gangs.items()):
            if gang.stopping_since is not None and (gang.broken or now - gang.stopping_since > STOP_GRACE_SECONDS):
                for rank in self.members(key):
                    if rank.phase is not Phase.ENDING:
                        self._end(rank, now)
        self._forget_gone(now)
        for pool in pools:
            self._keep_warm(pool, now)

    def probe(self, now: float) -> None:
        """Ask the ranks how they are; end those again that are to end, as the message may have been lost."""
        for rank in self.known.values():
            if rank.phase is Phase.ENDING:
                self._end(rank, now)
            elif now - rank.answered > PROBE_SECONDS:
                self._ask(rank, now)

    def excuse(self, seconds: float) -> None:
        """Give everybody so many more seconds to answer."""
        for rank in self.known.values():
            rank.asked = rank.asked + seconds if rank.asked is not None else None
            rank.progressed += seconds
            rank.heard += seconds

    def _end_silent(self, now: float) -> None:
        """End the ranks that have not answered for too long, and break their gangs."""
        for rank in self.known.values():
            patience = START_SECONDS if rank.phase is Phase.STARTING else SILENT_SECONDS
            if rank.asked is None or now - rank.asked < patience or rank.phase is Phase.ENDING:
                continue
            why = f"has not answered for {patience:.0f} s"
            if rank.phase is not Phase.STARTING:
                why += ": it was frozen, or its code held Python's lock in one long call"
            log.warning("the rank %s %s; ending it", rank.name, why)
            if rank.phase is Phase.STARTING:
                self._failures.failed(rank.device, f"it {why}", now)
            self._break(rank.key, f"a rank on {rank.device} {why}")
            self._identify(rank)
            self._end(rank, now)

    def _identify(self, rank: RankHandle) -> None:
        """Find the process of a rank that never answered, so that it can be killed and seen to be gone."""
        if rank.status is None:
            node_id, pid = process_of(rank.actor)
            if pid and node_id in nodes_of_host(self._node_id) and is_of_ray(pid):
                rank.status = RankStatus(Process.of(pid), "", 0, 0, False)
            elif pid:
                ray.remote(kill_rank).options(**on_node(node_id)).remote(pid)

    def _break_incomplete(self) -> None:
        """Break gangs that were found with ranks missing, once it is known what every rank does."""
        if not self._found or any(not rank.is_known for rank in self.known.values()):
            return
        for key, world in self._found.items():
            if missing := world - len(self.members(key)):
                self._break(key, f"{missing} of its {world} ranks are missing")
        self._found.clear()

    def _forget_gone(self, now: float) -> None:
        """Forget the ranks whose processes are known to be gone."""
        for rank in [rank for rank in self.known.values() if rank.phase is Phase.ENDING]:
            node = _node_of(rank.device)
            may_trust_ray = node in self._drained or (node in self._alive and rank.status is None)
            if has_ended(rank, may_trust_ray, self._lease_seconds, now):
                del self.known[rank.name]
                self._forget_gang(rank.key)

    def _forget_gang(self, key: str) -> None:
        """Forget a gang without ranks, unless nobody else knows why it is broken."""
        gang = self._gangs.get(key)
        if gang is None or self.members(key):
            return
        if not gang.broken or gang.is_recorded or gang.stopping_since is not None:
            del self._gangs[key]

    def _keep_warm(self, pool: Pool, now: float) -> None:
        """Keep one clean idle rank ready on each device that has room for another gang, and end superfluous idle ones.

        A launch that was put off has priority: no spare rank starts shortly after it.
        """
        for device in pool.devices:
            for rank in superfluous(self._idle(device.id), now):
                self._end(rank, now)
            has_clean = any(rank.code is None for rank in self._idle(device.id))
            room = len(self._on(device.id)) < self._max_per_device
            if not has_clean and room and now > self._put_off_until and self._may_start(pool, device.id, now):
                self.start(device.id, now)

    def _on(self, device: str) -> list[RankHandle]:
        """Ranks of the device, except those that end."""
        return [r for r in self.known.values() if r.device == device and r.phase is not Phase.ENDING]

    def _idle(self, device: str) -> list[RankHandle]:
        return [rank for rank in self._on(device) if not rank.key]

    def _may_start(self, pool: Pool, device: str, now: float) -> bool:
        """Whether another rank may start there: each takes a core, and half of those in use are left for training."""
        if not self._may_act() or not self._failures.may_try(device, now):
            return False
        devices = {device.id for device in pool.devices}
        ranks = [rank for rank in self.known.values() if rank.device in devices]
        starting = sum(rank.phase is Phase.STARTING for rank in ranks)
        training = sum(bool(rank.key) and rank.phase is not Phase.STARTING for rank in ranks)
        return starting < max(1, pool.num_cpus // 2, pool.num_cpus - training)

    def _ask(self, rank: RankHandle, now: float) -> None:
        """Ask a rank how it is, unless a question is on its way."""
        if rank.asked is None:
            rank.asked = now
            self._calls.expect("status", rank, rank.actor.status.remote(self._epoch))

    def _end(self, rank: RankHandle, now: float) -> None:
        """Kill the process; the rank stays listed until it is gone."""
        if not self._may_act():
            return
        if rank.phase is not Phase.ENDING:
            rank.phase, rank.since = Phase.ENDING, now
        ray.kill(rank.actor, no_restart=True)
        if rank.status is not None:
            # Ray only asks the process to end, and a stuck one does not
            self._kill_where_it_is(rank, rank.status.process)

    def _kill_where_it_is(self, rank: RankHandle, process: Process) -> None:
        """Kill the process, on another host by a task there, which says whether it is gone."""
        node_id = self._alive.get(_node_of(rank.device), "")
        if process.is_here:
            process.kill()
        elif node_id and not rank.is_being_killed:
            rank.is_being_killed = True
            task = ray.remote(end_process).options(**on_node(node_id), max_retries=0)
            self._calls.expect("kill", rank, task.remote(process))

    def _break(self, key: str, detail: str) -> None:
        if key and not self._gangs[key].broken:
            self._gangs[key].broken = detail

    # --- answers -----------------------------------------------------------------------------------------------------

    def receive(self, kind: str, rank: RankHandle, ref: Any, now: float) -> None:
        """Take the answer to a call of this ``kind``, or the error in its place."""
        if kind == "status":
            rank.asked = None
        if kind == "kill":
            rank.is_being_killed = False
        try:
            answer = ray.get(ref)
        except ray.exceptions.ActorUnavailableError:  # unreachable for now, not known to be dead
            self._ask_again(kind, rank, now)
        except Deposed:
            log.warning("a rank obeys a newer controller; this one changes nothing any more")
        except ray.exceptions.RayError as error:
            if rank.name in self.known and kind != "kill":  # otherwise its host has left: see ``has_ended``
                self._died(kind, rank, _cause_of_death(rank, error), now)
        else:
            self._hear(kind, rank, answer, now)

    def _ask_again(self, kind: str, rank: RankHandle, now: float) -> None:
        if kind == "run":
            self._calls.expect("run", rank, rank.actor.join.remote(rank.key))
        else:
            self._ask(rank, now)

    def _died(self, kind: str, rank: RankHandle, why: str, now: float) -> None:
        if rank.phase is Phase.STARTING:
            self._failures.failed(rank.device, why, now)
        if rank.phase is not Phase.ENDING:  # Ray calls one that we have killed dead before it is
            self._break(rank.key, f"a rank on {rank.device} died: {why}")
            rank.is_known = True  # whatever it ran, it runs no more
        self._end(rank, now)
        if kind != "run" and not rank.dead:  # the error of a run may be caused by the rank that it waits for
            rank.dead, rank.since = True, now

    def _hear(self, kind: str, rank: RankHandle, answer: Any, now: float) -> None:
        match kind:
            case "run" if rank.phase is not Phase.ENDING:
                self._attempt_ended(rank, answer, now)
            case "status":
                self._hear_status(rank, answer, now)
            case "kill":
                rank.is_gone = answer
            case "hold":
                self._hold(rank)

    def _hear_status(self, rank: RankHandle, status: RankStatus, now: float) -> None:
        before, first = rank.status, rank.answered == 0.0
        rank.status, rank.answered, rank.heard = status, now, now
        if before is None or (before.key, before.num_signs) != (status.key, status.num_signs):
            rank.progressed = now
        if rank.phase is Phase.FOUND:
            self._take_over(rank, status, now)
        elif rank.phase is Phase.STARTING:
            rank.phase = Phase.READY
            self._failures.started(rank.device)
        if first and rank.phase is not Phase.ENDING:
            self._hold(rank)

    def _take_over(self, rank: RankHandle, status: RankStatus, now: float) -> None:
        """Take over a rank of an earlier controller. One of another version may finish its attempt."""
        rank.phase, rank.is_known, rank.key, rank.code = Phase.READY, True, status.key, status.code
        if status.key:
            self._found[status.key] = status.world
            self._calls.expect("run", rank, rank.actor.join.remote(status.key))
        elif not status.reusable or status.version != source_hash():
            self._end(rank, now)

    def _attempt_ended(self, rank: RankHandle, ended: Ended, now: float) -> None:
        self._gangs[rank.key].is_recorded |= ended.outcome is not None
        if ended.outcome not in (Outcome.DONE, Outcome.STOPPED) and not ended.reusable:
            self._break(rank.key, f"a rank on {rank.device} ended: {_first_line(ended.outcome or ended.detail)}")
        if ended.outcome in (Outcome.DONE, Outcome.STOPPED) and ended.detail:
            log.info("the rank %s is replaced: %s", rank.name, ended.detail)
        is_old = rank.status is not None and rank.status.version != source_hash()
        if not ended.reusable or is_old:
            self._end(rank, now)
            return
        key, rank.key, rank.since = rank.key, "", now
        self._forget_gang(key)

    def _hold(self, rank: RankHandle) -> None:
        """Keep a call open, whose error says at once that the rank has died."""
        self._calls.expect("hold", rank, rank.actor.hold.remote(HOLD_SECONDS))


def _cause_of_death(rank: RankHandle, error: Exception) -> str:
    """Why a rank's process has ended, as far as Ray knows."""
    if "exits with a connection error" not in str(error):
        return _first_line(error)
    where = f"; its last words may be in Ray's log worker-*-{rank.status.process.pid}.err" if rank.status else ""
    return f"its process was killed (is the host short of memory?), crashed in native code, or called os._exit{where}"


def _first_line(text: object) -> str:
    return next(iter(str(text).strip().splitlines()), "")[:300]


def _node_of(device: str) -> str:
    return device.split("/", 1)[0]
