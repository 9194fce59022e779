"""A cluster in virtual time for the real controller, store and decisions: ranks, messages and faults are simulated.

Faults, all drawn from one seeded generator: ranks die, freeze or never start, messages to gangs are lost or doubled,
reports arrive late (even after the next attempt has begun), whole nodes vanish and come back, the database is away for
a while, and wall clocks jump. Two controllers take part in the election; each crashes before or after any write to the
database and any call to the executor, and each may stand still there while the other one takes over. The disk of the
checkpoints is full for a while, some candidates need far more memory after half of their steps, the sink is away while
ranks train and write checkpoints, devices join late, and one leaves for good.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from estimators.learned_seconds import learn_slow_downs, way_kind
from estimators.memory import Extra
from estimators.model import MIB, Plan, Prediction
from placement.model import Cluster, Device
from placement.option import NoPlan
from placement.planning.answers import ChosenPlan
from placement.planning.learned import choose_learned
from scamp_service.control.controller import Controller
from scamp_service.control.decide.finish import JOIN_SECONDS, RETURN_SECONDS
from scamp_service.control.executor import Demand, GangState, GangStatus, Order, Unsized
from scamp_service.control.leadership import Elected, Leadership, Reign
from scamp_service.errors import Unavailable
from scamp_service.lifecycle import CONTROLLER_LEASE, LIVE_STUDIES, Origin, Outcome, TrialState
from scamp_service.model import Json, Lease, Metric, Sized, Trial
from scamp_service.search.history import Past
from scamp_service.search.proposals import Search
from scamp_service.search.proposer import Asked, Proposal
from scamp_service.store.store import Store
from scamp_service.study.spec import StudySpec
from workloads.training.checkpoints.name import CheckpointName
from workloads.training.checkpoints.retention import outdated


class Crash(BaseException):
    """The controller is killed here."""


_HALVING = {"min_steps": 2, "reduction_factor": 2}
STOPPINGS = [
    {"rule": "none"},
    {"rule": "asha", **_HALVING},
    {"rule": "asha", **_HALVING, "promote": True},
    [{"rule": "hyperband", **_HALVING, "promote": True}, {"rule": "patience", "reports": 1}],
    {"rule": "pbt", "mutate": ["slow"], "quantile": 0.5},
]
"""One for each way in which trials end early: never, at once, after they were paused, and replaced by copies."""


@dataclass
class Faults:
    crash: float = 0.02  # at each write or executor call
    lose_message: float = 0.1  # launch or stop never arrives
    double_message: float = 0.1
    late_report: float = 0.3  # a report is delayed by up to a minute
    kill_rank: float = 0.05  # per gang and step
    lose_node: float = 0.01  # per gang and step
    fill_disk: float = 0.02  # per gang and step: no checkpoint can be written for up to two minutes
    lose_sink: float = 0.03  # per gang and step: its reports wait for up to ten seconds, and are lost if it dies
    join_late: float = 0.3  # per simulation: at first there is only one device on each node
    shrink: float = 0.2  # per simulation: one device leaves, in half of them for good
    freeze_rank: float = 0.01  # per gang and step
    hang_start: float = 0.05  # a launch of which a rank never answers
    slow_start: float = 0.2  # a launch that takes up to a minute
    silent_rank: float = 0.2  # a gang that a new controller finds, but of which a rank does not answer at once
    pause: float = 0.01  # a controller stands still at a write or executor call
    lose_database: float = 0.002  # per cycle, for up to a minute
    jump_clock: float = 0.02  # per cycle
    stall: float = 0.01  # per gang and step: its ranks answer, and do nothing
    slow_call: float = 0.02  # a call of a controller takes up to a second
    slow_sampler: float = 0.1  # a proposal takes up to five seconds
    fail_sizing: float = 0.05  # the host fails a candidate's trace again and again


def no_faults() -> Faults:
    """A world in which nothing goes wrong."""
    return Faults(**dict.fromkeys((field.name for field in fields(Faults)), 0.0))


@dataclass
class Clock:
    now: float = 1_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class SimulatedGang:
    order: Order
    alive: bool = True
    broken: str = ""
    frozen: bool = False
    progressed: float = 0.0
    started: bool = True  # False: it holds no memory yet
    step: int = 0
    seq: int = 0
    sink_back_at: float = 0.0
    unsent: list[Callable[[], bool]] = field(default_factory=list)
    has_answer: bool = False  # its outcome has been stored, or refused
    recorded: int = 0  # step of the newest checkpoint that the database has acknowledged, or that was resumed from


def truth_mib(params: Json) -> int:
    """What one rank of this candidate really needs; the sizer predicts less for those with a ``spike``, or with a
    ``gang_spike`` that only ranks of a gang have."""
    in_gangs = int(params.get("gang_spike", 0)) if params["ranks"] > 1 else 0
    return tensors_mib(params) + int(params.get("spike", 0)) + in_gangs


def grown_mib(params: Json, num_ranks: int) -> int:
    """What ranks need besides after half of the steps, such as states of parameters that are trained from then on: so
    many times what one rank of the trace needs, divided over the ranks."""
    return -(-int(params.get("grows", 0)) * int(params["mib"]) // num_ranks)


def fits_when_grown(params: Json, num_devices: int) -> bool:
    """Whether ranks that a candidate may have are enough for all that it will ever need."""
    ranks = max(4, params["ranks"])
    return ranks <= num_devices and truth_mib(params) + grown_mib(params, ranks) <= 96


def tensors_mib(params: Json) -> int:
    """What is measured in an early step; the sizer predicts less where the trace has ``missed`` some."""
    return int(params["mib"]) + int(params.get("missed", 0))


def step_seconds(order: Order) -> float:
    """What a step is said to take; the sizer predicts a second for one rank. Steps of the world take half a second."""
    return float(order.candidate.params.get("slow", 1.0)) / order.plan.world_size


def objective(trial_id: int, attempt: int, step: int) -> float:
    """Tells which attempt reported it, so that a value of a stale attempt is recognised."""
    return step + attempt / 1_000 + (trial_id % 7) / 100_000


SLOW = 1000
"""Makes trials so long that it is worth while to interrupt them for a wider plan."""
LONGEST_STALL_SECONDS = 400.0
TICK_SECONDS = 0.7
LONGEST_SKIP_SECONDS = 10.0
"""Limits that controllers set, such as how long a trial waits after a fault, are checked at least as often."""
SILENT_SECONDS = 30.0
START_SECONDS = 120.0


class World:
    """The cluster and its ranks in virtual time, whoever leads."""

    def __init__(
        self, store: Store, clock: Clock, rng: random.Random, faults: Faults, devices: Sequence[Device]
    ) -> None:
        self.store, self.clock, self.rng, self.faults, self.devices = store, clock, rng, faults, tuple(devices)
        self.gangs_by_key: dict[str, SimulatedGang] = {}
        self.lost_nodes: dict[str, float] = {}
        self.agenda: list[tuple[float, int, Callable[[], None]]] = []
        self.sequence = 0
        self.acknowledged: dict[tuple[int, int, int], float] = {}
        self.recorded: dict[tuple[int, int], int] = {}  # (trial, attempt) → step of its newest acknowledged checkpoint
        self.completed: dict[int, int] = {}  # trial → times that a rank finished all steps and was acknowledged
        self.disk: dict[int, set[CheckpointName]] = {}  # trial → its checkpoints
        self.least_ranks: dict[int, int] = {}  # trial → ranks that its first checkpoint is of
        self.disk_full_until = 0.0
        self.num_faults = 0
        self.violations: list[str] = []  # of what must always hold
        self.absent: set[str] = set()  # devices that have not joined yet, or have left
        self.was_incomplete = False  # whether candidates have ever been planned for fewer devices
        self.num_lost_nodes = 0
        if self._happens(faults.join_late):
            self.absent = {device.id for device in devices if device.index}
            self.was_incomplete = True
            self.after(rng.uniform(1.0, JOIN_SECONDS), self.absent.clear)
        if self._happens(faults.shrink):
            self.after(rng.uniform(60.0, 90.0), lambda: self._leave(self.devices[-1]))
        self.epoch = 0
        self.outage_until = 0.0
        self.jumped, self.has_jumped = 0.0, False

    def wall_clock(self) -> float:
        return self.clock.now + self.jumped

    @property
    def has_database(self) -> bool:
        return self.clock.now >= self.outage_until

    def disturb(self, num_cycles: float) -> None:
        """What may happen to all in any cycle, once for as many as have passed."""
        if self.rng.random() < 1.0 - (1.0 - self.faults.lose_database) ** num_cycles:
            self.outage_until = self.clock.now + self.rng.uniform(1.0, 60.0)
        if self.rng.random() < 1.0 - (1.0 - self.faults.jump_clock) ** num_cycles:
            self.jumped += self.rng.choice([-3600.0, -30.0, 30.0, 3600.0])
            self.has_jumped = True

    # --- the world
    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self.sequence += 1
        heapq.heappush(self.agenda, (self.clock.now + seconds, self.sequence, act))

    def advance(self, until: float) -> None:
        while self.agenda and self.agenda[0][0] <= until:
            self.clock.now, _, act = heapq.heappop(self.agenda)
            act()
            self.check_memory()
        self.clock.now = until

    def check_memory(self) -> None:
        used: dict[str, int] = {}
        for gang in self.gangs_by_key.values():
            for device in gang.order.devices if gang.started else ():
                used[device] = used.get(device, 0) + gang.order.mib_per_rank
        for device in self.devices:
            held_mib = used.get(device.id, 0)
            self.insist(held_mib <= device.capacity_mib, f"{device.id} is over-subscribed: {held_mib} MiB")

    def insist(self, holds: bool, otherwise: str) -> None:
        """Fail in the end: while a controller makes a call, it would contain an error as one of its own."""
        if not holds:
            self.violations.append(otherwise)

    def _happens(self, probability: float) -> bool:
        return probability > 0 and self.rng.random() < probability

    def _copies(self) -> int:
        if self.rng.random() < self.faults.lose_message:
            return 0
        return 2 if self.rng.random() < self.faults.double_message else 1

    def launch(self, order: Order) -> None:
        for _ in range(self._copies()):
            slow = self.rng.random() < self.faults.slow_start
            self.after(self.rng.uniform(0.0, 60.0 if slow else 2.0), lambda: self._arrive(order))

    def stop(self, key: str) -> None:
        for _ in range(self._copies()):
            self.after(self.rng.uniform(0.0, 3.0), lambda: self._remove(key))

    def _arrive(self, order: Order) -> None:
        """A launch takes effect only while its token is that of an open attempt: a rank asks before it begins."""
        if not self.has_database:
            self.after(1.0, lambda: self._arrive(order))
            return
        if self.rng.random() < self.faults.hang_start and order.key not in self.gangs_by_key:
            self._hang(order)
            return
        if order.key in self.gangs_by_key or any(
            d.node in self.lost_nodes or d.id in self.absent for d in self._devices_of(order)
        ):
            return
        if not self.store.report_started(order.trial_id, order.attempt, order.token, now=self.clock.now):
            return
        if any(a.key == order.key and a.outcome for a in self.store.attempts(order.trial_id)):
            return
        self.disk.setdefault(order.trial_id, set())
        kept = self.disk.get(order.resume.trial_id, set()) if order.resume else set()
        can_resume = order.resume is None or order.resume in kept
        self.insist(can_resume, f"{order.key}: no {order.resume} in {kept}")
        resume_step = order.resume.step if order.resume else -1
        before = [self.recorded.get((order.trial_id, attempt), -1) for attempt in range(order.attempt)]
        if order.resume and order.resume.trial_id != order.trial_id:
            before.append(order.resume.step)
        self.insist(resume_step == max(before), f"{order.key} resumes from {resume_step} of {before}")
        gang = SimulatedGang(order, step=max(resume_step, 0), recorded=resume_step, progressed=self.clock.now)
        self.gangs_by_key[order.key] = gang
        self.after(1.0, lambda: self._step(gang))

    def _hang(self, order: Order) -> None:
        """A rank that never answers: its gang is there, and breaks when the executor loses its patience."""
        gang = self.gangs_by_key[order.key] = SimulatedGang(
            order, frozen=True, started=False, progressed=self.clock.now
        )
        self.after(START_SECONDS, lambda: self._break(gang, "a rank has not answered for 120 s"))

    def _break(self, gang: SimulatedGang, why: str) -> None:
        gang.broken = why

    def _devices_of(self, order: Order) -> list[Device]:
        return [device for device in self.devices if device.id in order.devices]

    def _remove(self, key: str) -> None:
        gang = self.gangs_by_key.pop(key, None)
        if gang:
            gang.alive = False

    def _step(self, gang: SimulatedGang) -> None:
        order = gang.order
        if not gang.alive or gang.broken or gang.frozen:
            return
        if not self.has_database:
            self.after(1.0, lambda: self._step(gang))
            return
        if self.rng.random() < self.faults.lose_node:
            self._lose_node(self._devices_of(order)[0].node)
            return
        if self.rng.random() < self.faults.kill_rank:
            gang.broken = "a rank was killed"
            return
        gang.progressed = self.clock.now
        if self.rng.random() < self.faults.stall:
            return
        if self.rng.random() < self.faults.freeze_rank:
            gang.frozen = True
            self.after(SILENT_SECONDS, lambda: self._break(gang, "a rank has not answered for 30 s"))
            return
        grown = grown_mib(order.candidate.params, order.plan.world_size)
        needed_mib = truth_mib(order.candidate.params) + grown
        if order.trial_id == 1:
            needed_mib += int(order.candidate.params.get("accident", 0))
        if needed_mib > order.mib_per_rank and gang.step >= order.steps // 2:
            # A step that grows asks for one tensor after the other: it fails with the first that it does not get.
            measured = (min(needed_mib, order.mib_per_rank + 1) if grown else needed_mib) * MIB
            self.send(
                gang,
                lambda: self.store.report(
                    order.trial_id, order.attempt, order.token, measured_bytes=measured, now=self.clock.now
                ),
            )
            self.finish(gang, Outcome.OUT_OF_MEMORY, "tried to allocate")
            return
        if self._happens(self.faults.fill_disk):
            self.disk_full_until = self.clock.now + self.rng.uniform(5.0, 120.0)
        if self._happens(self.faults.lose_sink):
            gang.sink_back_at = self.clock.now + self.rng.uniform(1.0, 10.0)
        params = order.candidate.params
        breaks = (
            params.get("breaks") and not params["spike"] and not grown
        )  # a plan after an out-of-memory error may be a wider one
        if breaks and order.plan.world_size > self.least_ranks.get(order.trial_id, 64):
            self.finish(gang, Outcome.ERROR, "this model does not train on more ranks")
            return
        last = order.until or order.steps
        gang.step = min(last, gang.step + order.report_every)
        gang.seq += 1
        if self.clock.now < self.disk_full_until:
            self.num_faults += 1
            self.finish(gang, Outcome.FAULT, "No space left on device: /checkpoints")
            return
        self._save(gang)
        metric = Metric(
            order.trial_id,
            order.attempt,
            gang.seq,
            gang.step,
            {order.metric: objective(order.trial_id, order.attempt, gang.step)},
            self.clock.now,
        )
        self.report_metric(gang, metric)
        if gang.step >= last:
            self.finish(gang, Outcome.DONE, "")
        else:
            self.after(1.0, lambda: self._step(gang))

    def report_metric(self, gang: SimulatedGang, metric: Metric) -> None:
        order = gang.order

        def deliver() -> bool:
            accepted = self.store.report(
                order.trial_id,
                order.attempt,
                order.token,
                metrics=[metric],
                objective=order.metric,
                measured_bytes=tensors_mib(order.candidate.params) * MIB,
                checkpoint_step=metric.step,
                step_seconds=step_seconds(order),
                timed_steps=metric.step,
                now=self.clock.now,
            )
            if accepted:
                gang.recorded = max(gang.recorded, metric.step)
                self.recorded[(order.trial_id, order.attempt)] = gang.recorded
                self.acknowledged[(metric.trial_id, metric.attempt, metric.seq)] = metric.values[order.metric]
            return accepted

        self.send(gang, deliver)

    def send(self, gang: SimulatedGang, deliver: Callable[[], bool]) -> None:
        """A report arrives once, twice, or also much later; refused means stale: the gang ends itself.

        While the sink is away reports wait in order, as in a rank; those of a gang that dies meanwhile are lost. Ranks
        repeat a report while the database is away.
        """
        gang.unsent.append(deliver)
        if self.clock.now >= gang.sink_back_at:
            self._send_all(gang)
        elif len(gang.unsent) == 1:
            self.after(gang.sink_back_at - self.clock.now, lambda: self._send_all(gang))

    def _send_all(self, gang: SimulatedGang) -> None:
        if gang.broken or self.gangs_by_key.get(gang.order.key) is not gang:
            return
        while gang.unsent:
            self._send(gang, gang.unsent.pop(0))

    def _send(self, gang: SimulatedGang, deliver: Callable[[], bool]) -> None:
        if not self.has_database:
            self.after(1.0, lambda: self._send(gang, deliver))
            return
        if not deliver():
            self._remove(gang.order.key)
        if self.rng.random() < self.faults.double_message:
            deliver()
        if self.rng.random() < self.faults.late_report:
            self.after(self.rng.uniform(0.0, 60.0), lambda: self._deliver_late(deliver))

    def _deliver_late(self, deliver: Callable[[], bool]) -> None:
        if self.has_database:
            deliver()
        else:
            self.after(1.0, lambda: self._deliver_late(deliver))

    def finish(self, gang: SimulatedGang, outcome: Outcome, detail: str) -> None:
        order = gang.order

        def deliver() -> bool:
            accepted = self.store.report_outcome(
                order.trial_id, order.attempt, order.token, outcome, detail, now=self.clock.now
            )
            if accepted and outcome is Outcome.DONE:
                self.completed[order.trial_id] = max(order.attempt, self.completed.get(order.trial_id, 0))
            gang.has_answer = True
            return accepted

        if self.rng.random() < self.faults.kill_rank:  # one of the others dies, while rank 0 reports the outcome
            gang.broken = "a rank was killed"
            self.after(self.rng.uniform(0.0, 2.0), lambda: self.send(gang, deliver))
            return
        self.send(gang, deliver)
        leaves = max(0.0, gang.sink_back_at - self.clock.now) + self.rng.uniform(0.0, 1.0)
        self.after(leaves, lambda: self._go(gang))

    def _go(self, gang: SimulatedGang) -> None:
        """Ranks stay until their outcome is stored, or refused: the database may be away."""
        if gang.alive and gang.has_answer:
            self._remove(gang.order.key)
        elif gang.alive:
            self.after(1.0, lambda: self._go(gang))

    def _save(self, gang: SimulatedGang) -> None:
        trial_id, kept = gang.order.trial_id, self.disk[gang.order.trial_id]
        self.least_ranks.setdefault(gang.order.trial_id, gang.order.plan.world_size)
        newest = CheckpointName(trial_id, gang.step)
        kept.add(newest)
        kept -= set(outdated(kept, newest, {CheckpointName(trial_id, gang.recorded), gang.order.keep} - {None}))

    def _leave(self, device: Device) -> None:
        for key, gang in list(self.gangs_by_key.items()):
            if device.id in gang.order.devices:
                self._remove(key)
        self.absent.add(device.id)
        self.was_incomplete = True
        if self.rng.random() < 0.5:
            self.num_lost_nodes += 1
            self.after(self.rng.uniform(60.0, 0.8 * RETURN_SECONDS), lambda: self.absent.discard(device.id))

    def _lose_node(self, node: str) -> None:
        for key, gang in list(self.gangs_by_key.items()):
            if any(device.node == node for device in self._devices_of(gang.order)):
                self._remove(key)
        self.num_lost_nodes += 1
        self.was_incomplete = True
        self.lost_nodes[node] = self.clock.now
        self.after(self.rng.uniform(5.0, 60.0), lambda: (self.lost_nodes.pop(node, None), None)[1])


class SimulatedExecutor:
    """Implements ``Executor`` for one reign: what it knows of gangs, it has heard from their ranks."""

    def __init__(self, world: World, epoch: int) -> None:
        self.world, self.epoch = world, epoch
        world.epoch = max(world.epoch, epoch)
        now, rng = world.clock.now, world.rng
        is_silent = {key: rng.random() < world.faults.silent_rank for key in world.gangs_by_key}
        self.heard = {key: now + (rng.uniform(0.0, 60.0) if is_silent[key] else 0.0) for key in world.gangs_by_key}
        for when in self.heard.values():
            world.after(when - now, lambda: None)  # the controllers are not to sleep through it

    def cluster(self) -> Cluster:
        world = self.world
        return Cluster(tuple(d for d in world.devices if d.node not in world.lost_nodes and d.id not in world.absent))

    def gangs(self) -> Mapping[str, GangStatus]:
        return {
            key: GangStatus(GangState.BROKEN, gang.broken)
            if gang.broken
            else GangStatus(GangState.ALIVE, quiet_seconds=self.world.clock.now - gang.progressed)
            for key, gang in self.world.gangs_by_key.items()
            if key not in self._unheard()
        }

    def silent(self) -> frozenset[str]:
        gangs = self.world.gangs_by_key
        return frozenset(device for key in self._unheard() if key in gangs for device in gangs[key].order.devices)

    def closed(self) -> Mapping[str, str]:
        return dict.fromkeys(self.silent(), "a rank does not answer")

    def launch(self, order: Order) -> None:
        if self.epoch == self.world.epoch:
            self.world.launch(order)

    def stop(self, key: str) -> None:
        if self.epoch == self.world.epoch:
            self.world.stop(key)

    def _unheard(self) -> set[str]:
        return {key for key, when in self.heard.items() if when > self.world.clock.now}


class SimulatedSizer:
    """Implements ``Sizer``: plans are looked up in the candidate itself, results take a while."""

    def __init__(self, clock: Clock, rng: random.Random, fail: float = 0.0) -> None:
        self.clock, self.rng, self.fail = clock, rng, fail
        self.pending: dict[int, tuple[float, Sized | Unsized]] = {}

    def request(self, trial_id: int, demand: Demand, cluster: Cluster) -> None:
        if trial_id in self.pending:
            return
        self.pending[trial_id] = (self.clock.now + self.rng.uniform(0.0, 2.0), self._size(demand, cluster))

    def _size(self, demand: Demand, cluster: Cluster) -> Sized | Unsized:
        if self.rng.random() < self.fail:
            return Unsized("No space left on device three times", infeasible=False, may_pass=True)
        params, num_devices = demand.candidate.params, len(cluster.devices)
        params = params | {
            "ranks": max(params["ranks"], min(params.get("most_ranks", 1), 1 << demand.share.bit_length() - 1))
        }
        answer = choose_learned(lambda extra: self._first_plan(params, num_devices, extra), demand.own, demand.learned)
        if isinstance(answer, ChosenPlan):
            learned_bytes = demand.learned_bytes(answer.plan.layout)
            known = learn_slow_downs(demand.past, "virtual").get(way_kind(answer.plan))
            factor = known.factor if known else 1.0
            seconds = factor / answer.plan.world_size
            plan, prediction = answer.plan, answer.prediction
            return Sized("s", plan, prediction, answer.reason, learned_bytes, (), seconds, factor, share=demand.share)
        return Unsized(answer.reason, infeasible=True, offer=cluster.offer)

    def _first_plan(self, params: Json, num_devices: int, extra: Extra) -> ChosenPlan | NoPlan:
        """Candidates that grow may have more ranks; others have as many as they ask for."""
        ranks = int(params["ranks"])
        degrees = [degree for degree in (1, 2, 4) if degree >= ranks] if params.get("grows") else [ranks]
        answers = [self._plan(degree, params, num_devices, extra) for degree in degrees]
        return next((answer for answer in answers if isinstance(answer, ChosenPlan)), answers[0])

    def _plan(self, ranks: int, params: Json, num_devices: int, extra: Extra) -> ChosenPlan | NoPlan:
        if ranks > num_devices:
            return NoPlan(f"needs {ranks} devices; there are {num_devices}")
        plan = Plan(1, 4 // ranks, dp_shard=ranks)
        needed = Prediction(int(params["mib"]) * MIB, extra_bytes=extra.bytes_for(plan.layout))
        if needed.reserved_mib > 96:
            return NoPlan(f"needs {needed.reserved_mib} MiB; devices offer 96")
        held_bytes = min(extra.wanted_bytes(plan.layout), 96 * MIB) if extra.held_bytes else 0
        needed = replace(needed, extra_bytes=max(needed.extra_bytes, held_bytes - needed.traced_bytes))
        return ChosenPlan(plan, needed, f"{ranks} ranks of {needed.reserved_mib} MiB")

    def results(self) -> Mapping[int, Sized | Unsized]:
        return {trial: result for trial, (ready, result) in self.pending.items() if ready <= self.clock.now}

    def forget(self, trial_ids: Sequence[int]) -> None:
        for trial_id in trial_ids:
            self.pending.pop(trial_id, None)

    def held_up(self) -> Mapping[int, Sequence[int]]:
        return {}


class SimulatedProposer:
    """Implements ``Proposer``: samplers answer at once, except for some that take a while."""

    def __init__(self, clock: Clock, rng: random.Random, slow: float = 0.0) -> None:
        self.clock, self.rng, self.slow = clock, rng, slow
        self.pending: dict[int, tuple[float, float, int, Proposal | Exception]] = {}  # study → ready, begun, …
        self.searches: dict[int, Search] = {}

    def request(self, study_id: int, spec: StudySpec, changed: Iterable[Past], first_number: int, count: int) -> None:
        search = self.searches.pop(study_id, None)
        answer: Proposal | Exception
        try:
            search = search or Search(spec)
            candidates = search.propose(changed, first_number, count)
            answer, self.searches[study_id] = Proposal(candidates, len(candidates) < count), search
        except Exception as error:
            answer = error
        seconds = self.rng.uniform(0.0, 5.0) if self.slow and self.rng.random() < self.slow else 0.0
        self.pending[study_id] = (self.clock.now + seconds, self.clock.now, first_number, answer)

    def asked(self) -> Mapping[int, Asked]:
        return {
            study_id: Asked(first_number, self.clock.now - begun, answer if ready <= self.clock.now else None)
            for study_id, (ready, begun, first_number, answer) in self.pending.items()
        }

    def remembers(self, study_id: int) -> bool:
        return study_id in self.searches

    def forget(self, study_id: int) -> None:
        self.pending.pop(study_id, None)

    def forget_ended(self, live_studies: Container[int]) -> None:
        for known in (self.pending, self.searches):
            for study_id in [one for one in known if one not in live_studies]:
                known.pop(study_id)


class UnreliableProxy:
    """Passes the calls of one controller on. It may be killed before or after some of them, or stand still before."""

    def __init__(self, target: Any, methods: frozenset[str], process: ControllerProcess) -> None:
        self._target, self._methods, self._process = target, methods, process

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._target, name)
        if not callable(attribute):
            return attribute

        def call(*args: Any, **kwargs: Any) -> Any:
            if name in self._methods:
                self._process.simulation.num_acts += name != "renew_lease"
                self._process.disturb(f"before {name}")
            if isinstance(self._target, Store) and not self._process.simulation.world.has_database:
                raise Unavailable("the database is away")
            result = attribute(*args, **kwargs)
            self._process.delay()
            if name in self._methods:
                self._process.disturb(f"after {name}")
            return result

        return call


WRITES = frozenset(
    {
        *("move_study", "create_trials", "move_trial", "redate_refusals"),
        *("begin_attempt", "move_attempt", "take_lease", "renew_lease"),
    }
)
CALLS = frozenset({"launch", "stop"})
QUESTIONS = frozenset({"request"})


class ControllerProcess:
    """A process that runs a controller while it leads, and is started again after each crash."""

    def __init__(self, simulation: Simulation, number: int) -> None:
        self.simulation, self.number, self.life = simulation, number, 0
        self.stands_still = False
        self.continues_at = self.starts_at = 0.0
        self.start()

    def start(self) -> None:
        self.life += 1
        simulation = self.simulation
        self.sizer = SimulatedSizer(simulation.clock, simulation.rng, simulation.faults.fail_sizing)
        self.proposer = SimulatedProposer(simulation.clock, simulation.rng)
        store: Any = UnreliableProxy(simulation.store, WRITES, self)
        leadership = Leadership(
            store,
            2.0,
            holder=f"controller {self.number} life {self.life}",
            clock=simulation.clock,
            wall_clock=simulation.world.wall_clock,
            is_gone=lambda holder: False,
        )
        self.elected = Elected(leadership, self.begin)

    @property
    def due(self) -> list[float]:
        """When this process has something to do: it begins, continues, or has an answer of its sizer or a sampler."""
        answers = [*self.sizer.pending.values(), *self.proposer.pending.values()]
        return [self.starts_at, self.continues_at, *(ready for ready, *_ in answers)]

    def begin(self, lease: Lease) -> Reign:
        """Run the real controller on the fenced store; a lost race for the lease must not show anywhere."""
        simulation = self.simulation
        fenced: Any = UnreliableProxy(simulation.fence(lease), WRITES, self)
        executor: Any = UnreliableProxy(SimulatedExecutor(simulation.world, lease.epoch), CALLS, self)
        self.proposer = SimulatedProposer(simulation.clock, simulation.rng, simulation.faults.slow_sampler)
        proposer: Any = UnreliableProxy(self.proposer, QUESTIONS, self)
        controller = Controller(
            fenced,
            executor,
            self.sizer,
            proposer,
            clock=simulation.world.wall_clock,
            monotonic=simulation.clock,
            new_token=simulation.new_token,
        )
        return SimulatedReign(controller)

    def tick(self) -> None:
        """One cycle, unless the process is dead or stands still."""
        if self.stands_still or self.simulation.clock.now < self.starts_at:
            return
        simulation = self.simulation
        acts, now = simulation.num_acts, simulation.clock.now
        try:
            self.elected.tick()
            if self.elected.leads:
                simulation.is_quiet = (simulation.num_acts, simulation.clock.now) == (acts, now)
        except Unavailable:
            return
        except Crash:
            self.simulation.num_crashes += 1
            self.starts_at = self.simulation.clock.now + self.simulation.rng.uniform(0.0, 30.0)
            self.start()

    def disturb(self, where: str) -> None:
        rng, faults = self.simulation.rng, self.simulation.faults
        if rng.random() < faults.crash / 2:
            raise Crash(where)
        if rng.random() < faults.pause / 2:
            self.stand_still(rng.uniform(0.5, 20.0))

    def delay(self) -> None:
        """Ranks go on, and report, while a call takes its time."""
        simulation = self.simulation
        if simulation.rng.random() < simulation.faults.slow_call:
            simulation.world.advance(simulation.clock.now + simulation.rng.uniform(0.0, 1.0))

    def stand_still(self, seconds: float) -> None:
        """The world goes on, and the others with it; then this process continues where it stood."""
        simulation, self.stands_still = self.simulation, True
        simulation.num_pauses += 1
        self.continues_at = until = simulation.clock.now + seconds
        while simulation.clock.now < until:
            simulation.cycle()
        self.stands_still = False


@dataclass
class SimulatedReign:
    controller: Controller

    def tick(self) -> None:
        self.controller.tick()

    def close(self) -> None:
        """Nothing to let go of."""

    def end(self) -> None:
        """Nothing to end."""


@dataclass
class Simulation:
    """One seed: studies, a cluster, faults; ``run`` ends when every study has, or raises when it never does."""

    store: Store
    seed: int
    faults: Faults = field(default_factory=Faults)
    num_controllers: int = 2
    num_crashes: int = 0
    num_pauses: int = 0
    num_acts: int = 0  # calls of controllers that change something
    is_quiet: bool = False  # the leader had nothing to do in this cycle
    step_seconds: float = TICK_SECONDS  # how far the last cycle has moved the world

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.is_large = self.seed % 4 == 0
        self.skips = self.seed % 16 != 0  # time in which nothing can happen
        self.clock = Clock()
        nodes = self.rng.choice([1, 2])
        devices = [Device(f"n{n}/{i}", f"n{n}", i, "virtual", 96) for n in range(nodes) for i in range(4)]
        self.world = World(self.store, self.clock, self.rng, self.faults, devices)
        self.tokens = 0
        self.store.create_study(self.spec(0), now=self.clock.now)
        self.num_to_come = self.num_later_studies()
        if self.num_to_come:
            self.world.after(self.rng.uniform(0.0, 10.0), self._submit)
        self.controllers = [ControllerProcess(self, number) for number in range(self.num_controllers)]

    def num_later_studies(self) -> int:
        return self.rng.choice([0, 1])

    def _submit(self) -> None:
        self.store.create_study(self.spec(1), now=self.clock.now)
        self.num_to_come -= 1

    def new_token(self) -> str:
        self.tokens += 1
        return f"token-{self.tokens}"

    def fence(self, lease: Lease) -> Store:
        """The store of the leader; a mutant may leave the fence out."""
        return self.store.fenced(CONTROLLER_LEASE, lease)

    def spec(self, number: int) -> Json:
        grows: Json = {"grows": {"choice": [0, 3]}} if self.seed % 4 == 1 else {}
        return {
            "name": f"study {number}",
            "workload": "vit_digits",
            "objective": {"metric": "score", "direction": "maximize"},
            "space": {
                "mib": {"choice": [10, 30, 60, 90, 120]},
                "ranks": {"choice": [1, 2, 4]},
                "spike": {"choice": [0, 15]},
                "most_ranks": {"choice": [1, 4]},
                "slow": {"choice": [1, SLOW]},
                "breaks": {"choice": [0, 1]},
                **grows,
            },
            "search": {"sampler": "random", "seed": self.seed},
            "stopping": self.rng.choice(STOPPINGS),
            "budget": {
                "trials": self.rng.randint(3, 10) if self.is_large else self.rng.randint(2, 4),
                "steps": 8,
                "report_every": 2,
                "max_lost": 1000,
                "max_oom": 10,
                "stall_seconds": LONGEST_STALL_SECONDS,
            },
        }

    def run(self, limit_seconds: float = 20_000.0) -> None:
        end = self.clock.now + limit_seconds
        while not self.has_ended:
            assert self.clock.now < end, f"seed {self.seed}: not finished after {limit_seconds} virtual seconds"
            self.cycle()
            assert not self.world.violations, f"seed {self.seed}: {self.world.violations[0]}"
        self.world.outage_until = 0.0
        self.world.advance(self.clock.now + 120.0)  # let the latest of the late reports arrive
        self.check_end()
        assert not self.world.violations, f"seed {self.seed}: {self.world.violations[0]}"

    @property
    def has_ended(self) -> bool:
        """Whether every study has, and no attempt is left."""
        is_live = any(study.state in LIVE_STUDIES for study in self.store.studies())
        return not (self.num_to_come or is_live or self.store.open_attempts())

    def cycle(self) -> None:
        """Every controller has its turn, and the world moves on: a little, or to what happens next.

        While time was skipped, the leader has renewed its lease.
        """
        self.world.disturb(self.step_seconds / TICK_SECONDS)
        self.is_quiet = False
        processes = self.rng.sample(self.controllers, len(self.controllers))
        if self.step_seconds > TICK_SECONDS:
            processes.sort(key=lambda process: not process.elected.leads)
        for process in processes:
            process.tick()
        self.check_ledger()
        self.step_seconds = self.quiet_seconds() if self.is_quiet and self.skips else TICK_SECONDS
        self.world.advance(self.clock.now + self.step_seconds)

    def quiet_seconds(self) -> float:
        """Seconds until a controller that had nothing to do may have something to do, and a part of a cycle more."""
        now, agenda = self.clock.now, self.world.agenda
        due = [agenda[0][0]] if agenda else []
        due += [when for process in self.controllers for when in process.due]
        soonest = min((when for when in due if when > now), default=math.inf)
        after = soonest - now + self.rng.uniform(0.0, TICK_SECONDS)
        return max(TICK_SECONDS, min(after, LONGEST_SKIP_SECONDS))

    def check_ledger(self) -> None:
        reserved: dict[str, int] = {}
        for attempt in self.store.open_attempts():
            self.world.insist(len(set(attempt.devices)) == attempt.plan.world_size, f"{attempt.key} is not whole")
            for device in attempt.devices:
                reserved[device] = reserved.get(device, 0) + attempt.mib_per_rank
        self.world.insist(all(mib <= 96 for mib in reserved.values()), f"over-subscribed {reserved}")

    def check_end(self) -> None:
        for study in self.store.studies():
            trials = self.store.trials(study.id)
            own = [trial.number for trial in trials if trial.origin is Origin.SEARCH]
            assert len(own) == study.spec["budget"]["trials"], "none lost or doubled"
            assert [trial.number for trial in trials] == list(range(len(trials))), "none lost or doubled"
            for trial in trials:
                self.check_trial(trial)

    def check_trial(self, trial: Trial) -> None:
        where, devices = f"seed {self.seed}, trial {trial.id}", len(self.world.devices)
        assert trial.state in (TrialState.COMPLETED, TrialState.PRUNED, TrialState.INFEASIBLE), f"{where}: {trial}"
        # A controller that begins believes the wall clock: how long does the study wait for nodes that join?
        is_misled = self.world.has_jumped and self.world.epoch > 1
        attempts = self.store.attempts(trial.id)
        ran_out = bool(attempts) and attempts[-1].outcome is Outcome.OUT_OF_MEMORY
        returns = trial.plan is not None and not ran_out  # the devices of its plan are waited for
        is_whole = returns or not self.world.num_lost_nodes
        may_fit = is_whole and not is_misled and not trial.params.get("grows")
        may_fit = may_fit and trial.params["mib"] + trial.params.get("spike", 0) <= 60
        if trial.state is TrialState.INFEASIBLE and may_fit:
            num_devices = len([d for d in self.world.devices if d.id not in self.world.absent])
            assert trial.params["ranks"] > num_devices, f"{where}: it fits on {num_devices} devices"
        if trial.params.get("grows") and not self.world.was_incomplete and fits_when_grown(trial.params, devices):
            assert trial.num_oom <= 2 and trial.state is not TrialState.INFEASIBLE, f"{where}: {trial}"
        if trial.state is TrialState.COMPLETED:
            assert trial.value == objective(trial.id, trial.attempt, trial.step), f"{where}: value of another attempt"
        if trial.state is TrialState.COMPLETED and trial.step == 8:
            done = [a.attempt for a in attempts if a.outcome is Outcome.DONE]  # those before the last one paused it
            assert done[-1:] == [trial.attempt] == [self.world.completed[trial.id]], f"{where}: completed by {done}"
        stored = {(m.trial_id, m.attempt, m.seq): m for m in self.store.metrics(trial.id)}
        steps = [m.step for m in stored.values()]
        assert len(set(steps)) == len(steps), f"{where}: a step counts twice"
        newest = {}
        for (trial_id, attempt, seq), value in self.world.acknowledged.items():
            if trial_id == trial.id:
                newest[round(value)] = max(newest.get(round(value), (0, 0)), (attempt, seq))
        assert sorted(newest) == sorted(steps), f"{where}: acknowledged steps {sorted(newest)}, stored {sorted(steps)}"
