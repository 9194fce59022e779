"""Runs gangs on Ray: keeps warm ranks in the bundles of ``pools``, and knows which gangs exist now.

A rank is a detached actor. It outlives this process, and the next executor finds it by its name. Nothing here decides
what to run.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import ray

from placement.model import Cluster
from scamp_service.cluster.attempt import Ended
from scamp_service.cluster.connection import NAMESPACE, connect
from scamp_service.cluster.pools import Pool, Pools
from scamp_service.cluster.rank import Rank, RankStatus, host_id
from scamp_service.cluster.sink import ensure_sink
from scamp_service.control.executor import GangState, GangStatus, Order
from scamp_service.lifecycle import Outcome
from scamp_service.settings import Settings

log = logging.getLogger("scamp.ray")

SHARE = 0.01  # share of a bundle that one rank takes: at most 100 ranks on a device
HOLD_SECONDS = 60.0
STOP_GRACE_SECONDS = 5.0
PROBE_SECONDS = 5.0
GONE_SECONDS = 15.0  # after Ray reports the death of a process on another host, which may only be unreachable
REFRESH_SECONDS = 1.0
SPARE_RANKS = 2
SPARE_SECONDS = 20.0
MAX_ATTEMPTS = 200


class Phase(StrEnum):
    """Life of a rank process, as the executor sees it."""

    STARTING = "STARTING"
    READY = "READY"
    ENDING = "ENDING"  # killed or dead; its process may still hold memory


@dataclass(eq=False)
class RankHandle:
    """A rank process as the executor sees it. ``key`` is the attempt that it works for, empty when it is idle."""

    name: str
    device: str
    actor: Any
    phase: Phase = Phase.STARTING
    status: RankStatus | None = None
    key: str = ""
    since: float = field(default_factory=time.monotonic)  # idle since; ENDING: since it was killed or found dead
    dead: bool = False  # according to Ray


@dataclass(eq=False)
class GangRecord:
    """State of a gang that its ranks do not hold. A gang exists as long as a rank has its key.

    ``broken`` says why the gang must be stopped; empty while every rank lives.
    """

    broken: str = ""
    stopping_since: float | None = None


class RayExecutor:
    """Implements ``executor.Executor``. One background thread handles ends and deaths; no method waits for a rank."""

    def __init__(
        self, settings: Settings, store_url: str, checkpoint_root: Path, *, lease_seconds: float = 60.0
    ) -> None:
        """Connect to ``settings.ray_address`` and take over the living ranks. Raises ``Unavailable`` or ``Refused``."""
        self._settings, self._store_url, self._lease_seconds = settings, store_url, lease_seconds
        self._checkpoint_root = checkpoint_root.absolute()
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._ranks: dict[str, RankHandle] = {}
        self._gangs: defaultdict[str, GangRecord] = defaultdict(GangRecord)
        self._pools = Pools(settings)
        self._pending: dict[Any, tuple[str, RankHandle | None]] = {}
        self._refreshed = 0.0
        self._put_off = -REFRESH_SECONDS
        connect(settings.ray_address, settings.data_dir)
        self._node_id = ray.get_runtime_context().get_node_id()
        self._rank_class: Any = ray.remote(Rank)
        self._sink = ensure_sink(store_url, self._node_id)
        self._expect("sink", None, self._sink.ping.remote())
        self._adopt()
        self._refresh_pools()
        self._thread = threading.Thread(target=self._watch, name="ray-executor", daemon=True)
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
        return {"status": status, "detail": detail, "devices": [asdict(device) for device in self.cluster().devices]}

    def gangs(self) -> Mapping[str, GangStatus]:
        """Status of every attempt (``trial/attempt``) that has a rank."""
        with self._lock:
            return {key: self._gang_status(key) for key in sorted({r.key for r in self._ranks.values() if r.key})}

    def _gang_status(self, key: str) -> GangStatus:
        gang = self._gangs[key]
        if gang.stopping_since is not None:
            return GangStatus(GangState.STOPPING, gang.broken)
        return GangStatus(GangState.BROKEN if gang.broken else GangState.ALIVE, gang.broken)

    # --- what is asked for -------------------------------------------------------------------------------------------

    def launch(self, order: Order) -> None:
        """Start an attempt. No effect when it exists or a device has left; put off while a node starts other ranks."""
        with self._lock:
            if any(rank.key == order.key for rank in self._ranks.values()):
                return
            places = {device.id: pool for pool in self._pools for device in pool.devices}
            if missing := [device for device in order.devices if device not in places]:
                log.warning("attempt %s is not launched: %s has left the cluster", order.key, ", ".join(missing))
                return
            if not all(self._free(device) or self._may_start(places[device]) for device in order.devices):
                self._put_off = time.monotonic()
                return
            self._gangs[order.key] = GangRecord()
            ranks = [next(iter(self._free(device)), None) or self._create(device) for device in order.devices]
            for rank in ranks:
                rank.key = order.key
            rendezvous = None
            if len(ranks) > 1:
                ips = [places[device].node_ip for device in order.devices]
                host = "127.0.0.1" if len(set(ips)) == 1 else ips[0]
                rendezvous = ranks[0].actor.rendezvous.remote(order.key, len(ranks), host)
            for number, rank in enumerate(ranks):  # none of these waits: Ray queues calls to a rank that is starting
                self._expect("run", rank, rank.actor.run.remote(order, number, rendezvous))

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
                    rank.actor.stop.remote(key)

    def close(self) -> None:
        """Disconnect from Ray. Ranks and gangs keep running."""
        self._closed.set()
        self._thread.join()
        ray.shutdown()

    def shutdown(self, seconds: float = 20.0) -> None:
        """End every rank, the sink and the pools, then disconnect.

        Waits up to ``seconds`` for the ranks on this host to end. Ray ends the others, and ranks whose host is unknown.
        """
        self._closed.set()
        self._thread.join()
        with self._lock:
            for rank in self._ranks.values():
                self._end(rank)
            deadline = time.monotonic() + seconds
            while any(map(_lives_here, self._ranks.values())) and time.monotonic() < deadline:
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
        free = [r for r in self._ranks.values() if r.device == device and not r.key and r.phase is not Phase.ENDING]
        return sorted(free, key=lambda rank: rank.phase is not Phase.READY)

    def _may_start(self, pool: Pool) -> bool:
        """Whether another rank may start on the node: a start takes a core, and half of the cores are for training."""
        devices = {device.id for device in pool.devices}
        starting = sum(r.phase is Phase.STARTING and r.device in devices for r in self._ranks.values())
        return starting < max(1, pool.num_cpus // 2)

    def _create(self, device: str) -> RankHandle:
        name = f"rank/{device}/{secrets.token_hex(4)}"
        actor = self._rank_class.options(
            name=name,
            namespace=NAMESPACE,
            lifetime="detached",
            num_cpus=0,
            max_restarts=0,
            max_concurrency=16,
            **self._pools.options(device, SHARE),
        ).remote(
            str(self._settings.data_dir.absolute() / "code"),
            str(self._checkpoint_root),
            self._lease_seconds,
            MAX_ATTEMPTS,
        )
        rank = self._ranks[name] = RankHandle(name, device, actor)
        self._expect("status", rank, actor.status.remote())
        return rank

    def _end(self, rank: RankHandle) -> None:
        """Kill the process; the rank stays listed until it is gone."""
        if rank.phase is not Phase.ENDING:
            rank.phase, rank.since = Phase.ENDING, time.monotonic()
        ray.kill(rank.actor, no_restart=True)
        if rank.status is not None and rank.status.host == host_id():
            _kill_process(rank.status.pid)  # Ray only asks the process to end, and a stuck one does not

    def _forget_gone(self) -> None:
        """Forget the ranks whose processes are known to be gone."""
        for rank in [rank for rank in self._ranks.values() if rank.phase is Phase.ENDING]:
            if rank.status is not None and rank.status.host == host_id():
                gone = not _process_exists(rank.status.pid)
            else:
                gone = rank.dead and time.monotonic() - rank.since > GONE_SECONDS
            if gone:
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
        try:
            answer = ray.get(ref)
        except ray.exceptions.ActorUnavailableError:  # unreachable for now, not known to be dead
            self._ask_again(kind, rank)
        except ray.exceptions.RayError as error:
            if rank is None:
                self._ask_again(kind, rank)
            elif rank.name in self._ranks:
                self._break(rank.key, f"a rank on {rank.device} died: {_first_line(error)}")
                self._end(rank)
                if kind != "run" and not rank.dead:  # the error of a run may be caused by the rank that it waits for
                    rank.dead, rank.since = True, time.monotonic()
        else:
            self._handle_answer(kind, rank, answer)

    def _handle_answer(self, kind: str, rank: RankHandle | None, answer: Any) -> None:
        if rank is None:
            return  # the sink is alive
        if kind == "run":
            if rank.phase is not Phase.ENDING:
                self._attempt_ended(rank, answer)
        else:
            if kind == "status":
                rank.status = answer
                rank.phase = Phase.READY if rank.phase is Phase.STARTING else rank.phase
            self._expect("hold", rank, rank.actor.hold.remote(HOLD_SECONDS))

    def _attempt_ended(self, rank: RankHandle, ended: Ended) -> None:
        if ended.outcome not in (Outcome.DONE, Outcome.STOPPED) and not ended.reusable:
            self._break(rank.key, f"a rank on {rank.device} ended: {_first_line(ended.outcome or ended.detail)}")
        if not ended.reusable:
            self._end(rank)
            return
        key, rank.key, rank.since = rank.key, "", time.monotonic()
        if not self._members(key):
            self._gangs.pop(key, None)

    def _ask_again(self, kind: str, rank: RankHandle | None) -> None:
        if rank is None:
            self._sink = ensure_sink(self._store_url, self._node_id)
        elif kind == "run":
            self._expect("run", rank, rank.actor.join.remote(rank.key))
        else:
            self._expect("status", rank, rank.actor.status.remote())

    def _maintain(self) -> None:
        now = time.monotonic()
        for key, gang in list(self._gangs.items()):
            if gang.stopping_since is not None and (gang.broken or now - gang.stopping_since > STOP_GRACE_SECONDS):
                for rank in self._members(key):
                    if rank.phase is not Phase.ENDING:
                        self._end(rank)
        self._forget_gone()
        self._keep_warm(now)

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
                if not idle and room and now - self._put_off > REFRESH_SECONDS and self._may_start(pool):
                    self._create(device.id)

    # --- finding ranks and devices -------------------------------------------------------------------------------

    def _adopt(self) -> None:
        """Take over the ranks of an earlier controller. Ranks that do not answer are ended first."""
        probes: dict[Any, RankHandle] = {}
        for name in ray.util.list_named_actors():
            if name.startswith("rank/"):
                rank = RankHandle(name, name.split("/", 1)[1].rpartition("/")[0], ray.get_actor(name, NAMESPACE))
                probes[rank.actor.status.remote()] = rank
        if not probes:
            return
        answered, silent = ray.wait(list(probes), num_returns=len(probes), timeout=PROBE_SECONDS)
        worlds: dict[str, int] = {}
        for ref in answered:
            rank = probes[ref]
            with contextlib.suppress(ray.exceptions.RayError):  # it has died since it was listed
                rank.status = status = ray.get(ref)
                self._ranks[rank.name] = rank
                rank.phase, rank.key = Phase.READY, status.key
                self._expect("hold", rank, rank.actor.hold.remote(HOLD_SECONDS))
                if status.key:
                    worlds[status.key] = status.world
                    self._expect("run", rank, rank.actor.join.remote(status.key))
                elif not status.reusable:
                    self._end(rank)
        for key, world in worlds.items():
            if len(self._members(key)) < world:
                self._break(key, f"{world - len(self._members(key))} of its {world} ranks are missing")
        if silent:
            self._end_silent([probes[ref] for ref in silent])

    def _end_silent(self, ranks: list[RankHandle]) -> None:
        """End ranks that do not answer, and wait until they are gone.

        Their attempts are unknown, so their memory must be free before an attempt is reported as missing.
        """
        import ray._private.state as state

        nodes = _nodes()
        here = next(node["NodeManagerAddress"] for node in nodes if node["NodeID"] == self._node_id)
        ours = {node["NodeID"] for node in nodes if node["NodeManagerAddress"] == here}
        for rank in ranks:
            known = state.actors(rank.actor._actor_id.hex())
            if known.get("Pid") and known["Address"]["NodeID"] in ours:
                rank.status = RankStatus(host_id(), known["Pid"], "", 0, 0, False)
            self._ranks[rank.name] = rank
            self._end(rank)
        while any(rank.name in self._ranks for rank in ranks):
            time.sleep(0.05)
            self._forget_gone()

    def _refresh(self) -> None:
        with self._lock:
            for rank in self._ranks.values():
                if rank.phase is Phase.ENDING:
                    self._end(rank)  # again: the message may have been lost
            if not any(kind == "sink" for kind, _ in self._pending.values()):
                self._expect("sink", None, self._sink.ping.remote())
        self._refresh_pools()

    def _refresh_pools(self) -> None:
        nodes = {node["NodeID"]: node for node in _nodes() if node["Alive"]}
        with self._lock:
            for node_id, pool in self._pools.follow(nodes).items():
                devices = [device.id for device in pool.devices]
                log.warning("node %s has left with devices %s", node_id[:8], ", ".join(devices))
                for rank in [rank for rank in self._ranks.values() if rank.device in devices]:
                    self._break(rank.key, f"node {node_id[:8]} has left the cluster")
                    self._end(rank)


def _nodes() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return found


def _lives_here(rank: RankHandle) -> bool:
    return rank.status is not None and rank.status.host == host_id() and _process_exists(rank.status.pid)


def _process_exists(pid: int) -> bool:
    """Whether the process runs. A zombie does not count: it holds no memory, and its parent may collect it late."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def _kill_process(pid: int) -> None:
    """Send SIGKILL if the process is still one of Ray's: its pid may have been reused."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        if b"ray::" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)


def _first_line(text: object) -> str:
    return next(iter(str(text).strip().splitlines()), "")[:300]
