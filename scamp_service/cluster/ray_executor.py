"""Runs gangs on Ray: keeps warm ranks in the bundles of ``pools``, and knows which gangs exist now.

A rank is a detached actor. It outlives this process, and the next executor finds it by its name. Nothing here decides
what to run. Nothing here waits for a rank either: one that does not answer is ended after a while, and until its
process is known to be gone its device is closed.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from placement.model import Cluster
from scamp_service.cluster.attempt import Ended
from scamp_service.cluster.connection import connect, namespace_of
from scamp_service.cluster.folders import Folders
from scamp_service.cluster.pools import Pool, Pools
from scamp_service.cluster.rank import RankStatus, rank_class
from scamp_service.cluster.rank_handle import GangRecord, Phase, RankHandle, has_ended, lives_here
from scamp_service.cluster.rank_processes import end_process, is_of_ray, kill_rank, nodes, owner_of, process_of
from scamp_service.cluster.sink import SinkStatus, ensure_sink
from scamp_service.cluster.start_failures import StartFailures
from scamp_service.control.executor import GangState, GangStatus, Order
from scamp_service.errors import Deposed
from scamp_service.host import Process, source_hash
from scamp_service.lifecycle import Outcome
from scamp_service.settings import Settings

log = logging.getLogger("scamp.ray")

SHARE = 0.01  # share of a bundle that one rank takes: at most 100 ranks on a device
HOLD_SECONDS = 60.0
EXPECTED_TERMINATION = 1  # Ray's reason for the death of a node: it was stopped by SIGTERM
STOP_GRACE_SECONDS = 5.0
PROBE_SECONDS = 5.0  # between two questions to a rank how it is
SILENT_SECONDS = 30.0  # after which a rank that does not answer is ended
START_SECONDS = 120.0  # the same for one that has never answered
SINK_SECONDS = 20.0  # the same for the sink
PAUSE_SECONDS = 5.0  # between two looks: this process was frozen meanwhile, so no silence counts
REFRESH_SECONDS = 1.0
SPARE_RANKS = 2
SPARE_SECONDS = 20.0
MAX_ATTEMPTS = 200


class RayExecutor:
    """Implements ``executor.Executor``. One background thread handles ends and deaths; no method waits for a rank."""

    def __init__(
        self,
        settings: Settings,
        store_url: str,
        checkpoint_root: Path,
        *,
        identity: str,
        epoch: int,
        may_act: Callable[[], bool] = lambda: True,
        lease_seconds: float = 60.0,
    ) -> None:
        """Connect to ``settings.ray_address`` and take over the living ranks. Raises ``Unavailable`` or ``Refused``.

        ``identity`` is the name of the study database, ``epoch`` that of the controller's lease. Ranks are started and
        ended only while ``may_act()``, which says that no other controller can lead now.
        """
        self._settings, self._store_url, self._lease_seconds = settings, store_url, lease_seconds
        self._folders = Folders.of_controller(settings, checkpoint_root)
        self._identity, self._namespace, self._epoch, self._may_act = identity, namespace_of(identity), epoch, may_act
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._ranks: dict[str, RankHandle] = {}
        self._gangs: defaultdict[str, GangRecord] = defaultdict(GangRecord)
        self._pools = Pools(settings, identity)
        self._found: dict[str, int] = {}  # gang of an earlier controller → number of its ranks
        self._failures = StartFailures()
        self._alive: dict[str, str] = {}  # living nodes: name in device ids → node id
        self._drained: set[str] = set()  # nodes that were stopped in order
        self._pending: dict[Any, tuple[str, RankHandle | None]] = {}
        self._looked = time.monotonic()
        self._refreshed = 0.0
        self._put_off = -REFRESH_SECONDS
        self._rank_class: Any = rank_class()
        self._sink_status: SinkStatus | None = None
        self._sink_asked = time.monotonic()
        self._thread = threading.Thread(target=self._watch, name="ray-executor", daemon=True)
        connect(settings.ray_address, settings.data_dir, self._namespace)
        try:
            self._take_stock()
        except BaseException:
            ray.shutdown()  # a process connects only once at a time: the next executor could not begin
            raise

    def _take_stock(self) -> None:
        self._node_id = ray.get_runtime_context().get_node_id()
        self._sink = ensure_sink(self._store_url, self._identity, self._node_id, self._namespace)
        self._expect("sink", None, self._sink.ping.remote())
        self._adopt()
        self._refresh_pools()
        self._thread.start()

    # --- what exists now --------------------------------------------------------------------------------------------

    def cluster(self) -> Cluster:
        """The devices that can be used now; empty while the cluster starts."""
        with self._lock:
            return self._pools.cluster

    @property
    def status(self) -> str:
        """``ready``, ``starting``, or why there is no device."""
        with self._lock:
            return self._pools.status

    def describe(self) -> dict[str, Any]:
        """The cluster's status and devices, as JSON for ``Store.record_cluster``."""
        status, _, detail = self.status.partition(": ")
        closed = self.closed()
        devices = [{**asdict(device), "closed": closed.get(device.id, "")} for device in self.cluster().devices]
        return {"status": status, "detail": detail, "devices": devices}

    def gangs(self) -> Mapping[str, GangStatus]:
        """Status of every attempt (``trial/attempt``) that has a rank."""
        with self._lock:
            return {key: self._gang_status(key) for key in sorted({r.key for r in self._ranks.values() if r.key})}

    def silent(self) -> frozenset[str]:
        """Devices with a rank of which nobody knows what it does."""
        with self._lock:
            return frozenset(rank.device for rank in self._ranks.values() if not rank.is_known)

    def closed(self) -> Mapping[str, str]:
        """Devices on which nothing new may start now, and why."""
        silent = dict.fromkeys(self.silent(), "a rank does not answer; its process is being ended")
        with self._lock:
            return {**self._failures.closed(), **silent}

    def _gang_status(self, key: str) -> GangStatus:
        gang = self._gangs[key]
        if gang.stopping_since is not None:
            return GangStatus(GangState.STOPPING, gang.broken)
        if gang.broken:
            return GangStatus(GangState.BROKEN, gang.broken)
        members = self._members(key)
        quiet_seconds = self._looked - max(rank.progressed for rank in members)
        doing = [f"rank {rank.status.rank} {rank.status.doing}" for rank in members if rank.status and rank.status.key]
        return GangStatus(GangState.ALIVE, "", max(0.0, quiet_seconds), "; ".join(doing))

    # --- what is asked for -------------------------------------------------------------------------------------------

    def launch(self, order: Order) -> None:
        """Start an attempt. No effect when it exists, a device has left, or another controller may lead.

        It is put off while a node starts other ranks.
        """
        with self._lock:
            if not self._may_act():  # asked with the lock held, for which this thread may have waited for long
                return
            if any(rank.key == order.key for rank in self._ranks.values()):
                return
            places = {device.id: pool for pool in self._pools for device in pool.devices}
            if missing := [device for device in order.devices if device not in places]:
                log.warning("attempt %s is not launched: %s has left the cluster", order.key, ", ".join(missing))
                return
            if not all(self._free(device) or self._may_start(places[device], device) for device in order.devices):
                self._put_off = time.monotonic()
                return
            self._gangs[order.key] = GangRecord()
            ranks = [next(iter(self._free(device)), None) or self._create(device) for device in order.devices]
            for rank in ranks:
                rank.key, rank.progressed = order.key, time.monotonic()
            rendezvous = None
            if len(ranks) > 1:
                ips = [places[device].node_ip for device in order.devices]
                host = "127.0.0.1" if len(set(ips)) == 1 else ips[0]
                rendezvous = ranks[0].actor.rendezvous.remote(order.key, len(ranks), host, self._epoch)
            for number, rank in enumerate(ranks):  # none of these waits: Ray queues calls to a rank that is starting
                self._expect("run", rank, rank.actor.run.remote(order, number, rendezvous, self._epoch))

    def stop(self, key: str) -> None:
        """Ask the ranks of an attempt to stop; they are killed if the gang is broken or they take too long."""
        with self._lock:
            gang = self._gangs[key]
            if gang.stopping_since is not None:
                return
            gang.stopping_since = time.monotonic()
            for rank in self._members(key):
                if gang.broken:  # the remaining ranks hang in a collective
                    self._end(rank)
                else:
                    rank.actor.stop.remote(key, self._epoch)

    def close(self) -> None:
        """Disconnect from Ray. Ranks and gangs keep running."""
        self._closed.set()
        self._thread.join()
        ray.shutdown()

    def stop_all(self) -> None:
        """Ask every gang to stop, and wait for those that can do so within ``STOP_GRACE_SECONDS``."""
        deadline = time.monotonic() + STOP_GRACE_SECONDS
        for key in self.gangs() if self._may_act() else ():
            self.stop(key)
        while self._may_act() and self.gangs() and time.monotonic() < deadline:
            time.sleep(0.05)

    def shutdown(self, seconds: float = 20.0) -> None:
        """End every rank, the sink and the pools, then disconnect.

        Waits up to ``seconds`` for the ranks on this host to end. Ray ends the others, and ranks whose host is unknown.
        """
        if not self._may_act():
            self.close()
            return
        deadline = time.monotonic() + seconds
        self._closed.set()
        self._thread.join()
        with self._lock:
            for rank in self._ranks.values():
                self._end(rank)
            while any(map(lives_here, self._ranks.values())) and time.monotonic() < deadline:
                time.sleep(0.02)
            with contextlib.suppress(ray.exceptions.RayError):
                ray.kill(self._sink)
                self._pools.remove()
        ray.shutdown()

    # --- ranks -------------------------------------------------------------------------------------------------------

    def _members(self, key: str) -> list[RankHandle]:
        return [rank for rank in self._ranks.values() if rank.key == key]

    def _free(self, device: str) -> list[RankHandle]:
        """Idle ranks of the device, ready ones first."""
        mine = (rank for rank in self._ranks.values() if rank.device == device and not rank.key)
        free = [rank for rank in mine if rank.phase in (Phase.STARTING, Phase.READY)]
        return sorted(free, key=lambda rank: rank.phase is not Phase.READY)

    def _may_start(self, pool: Pool, device: str) -> bool:
        """Whether another rank may start there: each takes a core, and half of those in use are left for training."""
        if not self._may_act() or not self._failures.may_try(device, time.monotonic()):
            return False
        devices = {device.id for device in pool.devices}
        ranks = [rank for rank in self._ranks.values() if rank.device in devices]
        starting = sum(rank.phase is Phase.STARTING for rank in ranks)
        training = sum(bool(rank.key) and rank.phase is not Phase.STARTING for rank in ranks)
        return starting < max(1, pool.num_cpus // 2, pool.num_cpus - training)

    def _create(self, device: str) -> RankHandle:
        name = f"rank/{device}/{secrets.token_hex(4)}"
        actor = self._rank_class.options(
            name=name,
            namespace=self._namespace,
            lifetime="detached",
            num_cpus=0,
            max_restarts=0,
            max_concurrency=16,
            **self._pools.options(device, SHARE),
        ).remote(
            self._folders,
            self._lease_seconds,
            MAX_ATTEMPTS,
            self._namespace,
            self._epoch,
            self._settings.pass_environment,
        )
        rank = self._ranks[name] = RankHandle(name, device, actor)
        self._ask(rank)
        return rank

    def _ask(self, rank: RankHandle) -> None:
        """Ask a rank how it is, unless a question is on its way."""
        if rank.asked is None:
            rank.asked = time.monotonic()
            self._expect("status", rank, rank.actor.status.remote(self._epoch))

    def _end(self, rank: RankHandle) -> None:
        """Kill the process; the rank stays listed until it is gone."""
        if not self._may_act():
            return
        if rank.phase is not Phase.ENDING:
            rank.phase, rank.since = Phase.ENDING, time.monotonic()
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
            strategy: Any = NodeAffinitySchedulingStrategy(node_id, soft=False)
            task = ray.remote(end_process).options(num_cpus=0, max_retries=0, scheduling_strategy=strategy)
            self._expect("kill", rank, task.remote(process))

    def _kill(self, process: Process, node_id: str = "") -> None:
        """Send SIGKILL to a process, by a task on ``node_id`` if it is on another host."""
        if process.is_here:
            process.kill()
        elif node_id:
            strategy: Any = NodeAffinitySchedulingStrategy(node_id, soft=False)
            ray.remote(Process.kill).options(num_cpus=0, scheduling_strategy=strategy).remote(process)

    def _forget_gone(self) -> None:
        """Forget the ranks whose processes are known to be gone."""
        for rank in [rank for rank in self._ranks.values() if rank.phase is Phase.ENDING]:
            node = _node_of(rank.device)
            may_trust_ray = node in self._drained or (node in self._alive and rank.status is None)
            if has_ended(rank, may_trust_ray, self._lease_seconds, time.monotonic()):
                del self._ranks[rank.name]
                if not self._members(rank.key):
                    self._gangs.pop(rank.key, None)

    def _break(self, key: str, detail: str) -> None:
        if key and not self._gangs[key].broken:
            self._gangs[key].broken = detail

    # --- the background thread -----------------------------------------------------------------------------------

    def _expect(self, kind: str, rank: RankHandle | None, ref: Any) -> None:
        self._pending[ref] = (kind, rank)

    def _watch(self) -> None:
        while not self._closed.is_set():
            try:
                with self._lock:
                    refs = list(self._pending)
                ready, _ = ray.wait(refs, num_returns=1, timeout=0.05, fetch_local=False) if refs else ([], [])
                if not refs:
                    self._closed.wait(0.05)
                with self._lock:
                    for ref in ready:
                        self._receive(ref, *self._pending.pop(ref))
                    self._maintain()
                if time.monotonic() - self._refreshed > REFRESH_SECONDS:
                    self._refreshed = time.monotonic()
                    self._refresh()
            except Exception:
                log.exception("error in the Ray executor; it continues")
                self._closed.wait(0.5)

    def _receive(self, ref: Any, kind: str, rank: RankHandle | None) -> None:
        if rank is not None and kind == "status":
            rank.asked = None
        if rank is not None and kind == "kill":
            rank.is_being_killed = False
        try:
            answer = ray.get(ref)
        except ray.exceptions.ActorUnavailableError:  # unreachable for now, not known to be dead
            self._ask_again(kind, rank)
        except Deposed:
            log.warning("a rank obeys a newer controller; this one changes nothing any more")
        except ray.exceptions.RayError as error:
            if rank is None:
                self._ask_again(kind, rank)
            elif rank.name in self._ranks and kind != "kill":  # otherwise its host has left: see ``has_ended``
                self._died(rank, kind, _first_line(error))
        else:
            self._handle_answer(kind, rank, answer)

    def _died(self, rank: RankHandle, kind: str, why: str) -> None:
        if rank.phase is Phase.STARTING:
            self._failures.failed(rank.device, why, time.monotonic())
        self._break(rank.key, f"a rank on {rank.device} died: {why}")
        if rank.phase is not Phase.ENDING:  # Ray calls one that we have killed dead before it is
            rank.is_known = True  # whatever it ran, it runs no more
        self._end(rank)
        if kind != "run" and not rank.dead:  # the error of a run may be caused by the rank that it waits for
            rank.dead, rank.since = True, time.monotonic()

    def _handle_answer(self, kind: str, rank: RankHandle | None, answer: Any) -> None:
        if rank is None:
            is_first, self._sink_status = self._sink_status is None, answer
            # Only the sink of an earlier controller is replaced. Once the checkout is updated, each new sink differs.
            if is_first and answer.version != source_hash():
                self._replace_sink("it is of another version")
        elif kind == "run":
            if rank.phase is not Phase.ENDING:
                self._attempt_ended(rank, answer)
        elif kind == "status":
            self._hear(rank, answer)
        elif kind == "kill":
            rank.is_gone = answer
        else:
            self._expect("hold", rank, rank.actor.hold.remote(HOLD_SECONDS))

    def _hear(self, rank: RankHandle, status: RankStatus) -> None:
        now = time.monotonic()
        before, first = rank.status, rank.answered == 0.0
        rank.status, rank.answered, rank.heard = status, now, now
        if before is None or (before.key, before.num_signs) != (status.key, status.num_signs):
            rank.progressed = now
        if rank.phase is Phase.FOUND:
            self._take_over(rank, status)
        elif rank.phase is Phase.STARTING:
            rank.phase = Phase.READY
            self._failures.started(rank.device)
        if first and rank.phase is not Phase.ENDING:
            self._expect("hold", rank, rank.actor.hold.remote(HOLD_SECONDS))

    def _take_over(self, rank: RankHandle, status: RankStatus) -> None:
        """Take over a rank of an earlier controller. One of another version may finish its attempt."""
        rank.phase, rank.is_known, rank.key = Phase.READY, True, status.key
        if status.key:
            self._found[status.key] = status.world
            self._expect("run", rank, rank.actor.join.remote(status.key))
        elif not status.reusable or status.version != source_hash():
            self._end(rank)

    def _attempt_ended(self, rank: RankHandle, ended: Ended) -> None:
        if ended.outcome not in (Outcome.DONE, Outcome.STOPPED) and not ended.reusable:
            self._break(rank.key, f"a rank on {rank.device} ended: {_first_line(ended.outcome or ended.detail)}")
        is_old = rank.status is not None and rank.status.version != source_hash()
        if not ended.reusable or is_old:
            self._end(rank)
            return
        key, rank.key, rank.since = rank.key, "", time.monotonic()
        if not self._members(key):
            self._gangs.pop(key, None)

    def _ask_again(self, kind: str, rank: RankHandle | None) -> None:
        if rank is None:
            self._sink = ensure_sink(self._store_url, self._identity, self._node_id, self._namespace)
        elif kind == "run":
            self._expect("run", rank, rank.actor.join.remote(rank.key))
        else:
            self._ask(rank)

    def _replace_sink(self, why: str) -> None:
        log.warning("the sink is replaced: %s", why)
        if self._may_act():
            ray.kill(self._sink, no_restart=True)
            if self._sink_status is not None:
                self._kill(self._sink_status.process, self._node_id)

    def _maintain(self) -> None:
        now = time.monotonic()
        self._excuse(now)
        self._end_silent(now)
        self._break_incomplete()
        for key, gang in list(self._gangs.items()):
            if gang.stopping_since is not None and (gang.broken or now - gang.stopping_since > STOP_GRACE_SECONDS):
                for rank in self._members(key):
                    if rank.phase is not Phase.ENDING:
                        self._end(rank)
        self._forget_gone()
        self._keep_warm(now)

    def _excuse(self, now: float) -> None:
        """After a pause of this very process, give everybody as much more time to answer."""
        pause, self._looked = now - self._looked, now
        if pause > PAUSE_SECONDS:
            self._sink_asked += pause
            for rank in self._ranks.values():
                rank.asked = rank.asked + pause if rank.asked is not None else None
                rank.progressed += pause
                rank.heard += pause

    def _end_silent(self, now: float) -> None:
        """End the ranks that have not answered for too long, and break their gangs."""
        for rank in self._ranks.values():
            patience = START_SECONDS if rank.phase is Phase.STARTING else SILENT_SECONDS
            if rank.asked is None or now - rank.asked < patience or rank.phase is Phase.ENDING:
                continue
            why = f"has not answered for {patience:.0f} s"
            log.warning("the rank %s %s; ending it", rank.name, why)
            if rank.phase is Phase.STARTING:
                self._failures.failed(rank.device, f"it {why}", now)
            self._break(rank.key, f"a rank on {rank.device} {why}")
            self._identify(rank)
            self._end(rank)

    def _identify(self, rank: RankHandle) -> None:
        """Find the process of a rank that never answered, so that it can be killed and seen to be gone."""
        if rank.status is None:
            node_id, pid = process_of(rank.actor)
            if pid and node_id in self._nodes_here() and is_of_ray(pid):
                rank.status = RankStatus(Process.of(pid), "", 0, 0, False)
            elif pid:
                strategy: Any = NodeAffinitySchedulingStrategy(node_id, soft=False)
                ray.remote(kill_rank).options(num_cpus=0, scheduling_strategy=strategy).remote(pid)

    def _nodes_here(self) -> set[str]:
        listed = nodes()
        here = next(node["NodeManagerAddress"] for node in listed if node["NodeID"] == self._node_id)
        return {node["NodeID"] for node in listed if node["NodeManagerAddress"] == here}

    def _break_incomplete(self) -> None:
        """Break gangs that were found with ranks missing, once it is known what every rank does."""
        if not self._found or any(not rank.is_known for rank in self._ranks.values()):
            return
        for key, world in self._found.items():
            if missing := world - len(self._members(key)):
                self._break(key, f"{missing} of its {world} ranks are missing")
        self._found.clear()

    def _keep_warm(self, now: float) -> None:
        """Keep one idle rank ready on each device that has room for another gang, and end surplus idle ones.

        A launch that was put off has priority: no spare rank starts shortly after it.
        """
        for pool in self._pools:
            for device in pool.devices:
                ranks = [r for r in self._ranks.values() if r.device == device.id and r.phase is not Phase.ENDING]
                idle = [rank for rank in ranks if not rank.key]
                for rank in idle[SPARE_RANKS:]:
                    if rank.phase is Phase.READY and now - rank.since > SPARE_SECONDS:
                        self._end(rank)
                room = len(ranks) < self._settings.max_gangs_per_device
                if not idle and room and now - self._put_off > REFRESH_SECONDS and self._may_start(pool, device.id):
                    self._create(device.id)

    # --- finding ranks and devices -------------------------------------------------------------------------------

    def _adopt(self) -> None:
        """Find the ranks of an earlier controller, and ask them what they do."""
        for listed in ray.util.list_named_actors(all_namespaces=True):
            name = listed["name"]
            if listed["namespace"] == self._namespace and name.startswith("rank/"):
                with contextlib.suppress(ValueError):  # it has just died
                    actor = ray.get_actor(name, self._namespace)
                    device = name.split("/", 1)[1].rpartition("/")[0]
                    self._ranks[name] = RankHandle(name, device, actor, Phase.FOUND, is_known=False)
                    self._ask(self._ranks[name])

    def _refresh(self) -> None:
        now = time.monotonic()
        with self._lock:
            for rank in self._ranks.values():
                if rank.phase is Phase.ENDING:
                    self._end(rank)  # again: the message may have been lost
                elif now - rank.answered > PROBE_SECONDS:
                    self._ask(rank)
            self._ask_sink(now)
        self._refresh_pools()

    def _ask_sink(self, now: float) -> None:
        if not any(kind == "sink" for kind, _ in self._pending.values()):
            self._sink_asked = now
            self._expect("sink", None, self._sink.ping.remote())
        elif now - self._sink_asked > SINK_SECONDS:
            self._sink_asked = now
            self._replace_sink(f"it has not answered for {SINK_SECONDS:.0f} s")

    def _refresh_pools(self) -> None:
        listed = nodes()
        alive = {node["NodeID"]: node for node in listed if node["Alive"]}
        with self._lock:
            self._alive = {node_id[:8]: node_id for node_id in alive}
            self._drained = {node["NodeID"][:8] for node in listed if node.get("DeathReason") == EXPECTED_TERMINATION}
            for node_id, pool in self._pools.follow(alive).items():
                devices = [device.id for device in pool.devices]
                log.warning("node %s has left with devices %s", node_id[:8], ", ".join(devices))
                for rank in [rank for rank in self._ranks.values() if rank.device in devices]:
                    self._break(rank.key, f"node {node_id[:8]} has left the cluster")
                    self._end(rank)
            unknown = self._pools.foreign - self._pools.owners.keys()
        for identity in unknown:
            if owner := owner_of(identity):
                with self._lock:
                    self._pools.owners[identity] = owner


def _node_of(device: str) -> str:
    return device.split("/", 1)[0]


def _first_line(text: object) -> str:
    return next(iter(str(text).strip().splitlines()), "")[:300]
