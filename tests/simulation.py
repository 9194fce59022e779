"""A cluster in virtual time for the real controller, store and decisions: ranks, messages and faults are simulated.

Faults, all drawn from one seeded generator: ranks die, messages to gangs are lost or doubled, reports arrive late
(even after the next attempt has begun), whole nodes vanish and come back, and the controller crashes before or after
any write to the database and any call to the executor. The disk of the checkpoints is full for a while, the sink is
away while ranks train and write checkpoints, devices join late, and one leaves for good.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from estimators.learned_seconds import learn_slow_downs, way_kind
from estimators.memory import Extra
from estimators.model import MIB, Plan, Prediction
from placement.model import Cluster, Device
from placement.planning.learned import choose_learned
from placement.planning.options import ChosenPlan, NoPlan
from scamp_service.control.controller import Controller
from scamp_service.control.decide.finish import JOIN_SECONDS
from scamp_service.control.executor import Demand, GangState, GangStatus, Order, Unsized
from scamp_service.lifecycle import LIVE_STUDIES, Outcome, TrialState
from scamp_service.model import Json, Metric, Sized, Trial
from scamp_service.store.store import Store
from workloads.training.retention import outdated


class Crash(Exception):
    """The controller is killed here."""


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
    shrink: float = 0.2  # per simulation: one device leaves for good


NO_FAULTS = Faults(*[0.0] * len(fields(Faults)))


@dataclass
class Clock:
    now: float = 1_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class SimulatedGang:
    order: Order
    alive: bool = True
    dead_rank: bool = False
    step: int = 0
    seq: int = 0
    sink_back_at: float = 0.0
    unsent: list[Callable[[], bool]] = field(default_factory=list)
    recorded: int = 0  # step of the newest checkpoint that the database has acknowledged, or that was resumed from


def truth_mib(params: Json) -> int:
    """What one rank of this candidate really needs; the sizer predicts less for those with a ``spike``, or with a
    ``gang_spike`` that only ranks of a gang have."""
    in_gangs = int(params.get("gang_spike", 0)) if params["ranks"] > 1 else 0
    return tensors_mib(params) + int(params.get("spike", 0)) + in_gangs


def tensors_mib(params: Json) -> int:
    """What is measured in an early step; the sizer predicts less where the trace has ``missed`` some."""
    return int(params["mib"]) + int(params.get("missed", 0))


def step_seconds(params: Json) -> float:
    """What a step really takes; the sizer predicts a second."""
    return float(params.get("slow", 1.0))


def objective(trial_id: int, attempt: int, step: int) -> float:
    """Tells which attempt reported it, so that a value of a stale attempt is recognised."""
    return step + attempt / 1_000 + (trial_id % 7) / 100_000


class SimulatedExecutor:
    """Implements ``Executor`` in virtual time."""

    def __init__(
        self, store: Store, clock: Clock, rng: random.Random, faults: Faults, devices: Sequence[Device]
    ) -> None:
        self.store, self.clock, self.rng, self.faults, self.devices = store, clock, rng, faults, tuple(devices)
        self.gangs_by_key: dict[str, SimulatedGang] = {}
        self.lost_nodes: dict[str, float] = {}
        self.agenda: list[tuple[float, int, Callable[[], None]]] = []
        self.sequence = 0
        self.acknowledged: dict[tuple[int, int, int], float] = {}
        self.completed: dict[int, int] = {}  # trial → times that a rank finished all steps and was acknowledged
        self.launches: dict[str, int] = {}
        self.disk: dict[int, set[int]] = {}  # trial → steps of its checkpoints
        self.disk_full_until = 0.0
        self.num_faults = 0
        self.absent: set[str] = set()  # devices that have not joined yet, or have left
        self.num_lost_nodes = 0
        if self._happens(faults.join_late):
            self.absent = {device.id for device in devices if device.index}
            self.after(rng.uniform(1.0, JOIN_SECONDS), self.absent.clear)
        if self._happens(faults.shrink):
            self.after(rng.uniform(60.0, 90.0), lambda: self._leave(self.devices[-1]))

    # --- Executor
    def cluster(self) -> Cluster:
        return Cluster(tuple(d for d in self.devices if d.node not in self.lost_nodes and d.id not in self.absent))

    def gangs(self) -> Mapping[str, GangStatus]:
        return {
            key: GangStatus(GangState.BROKEN, "a rank was killed") if gang.dead_rank else GangStatus(GangState.ALIVE)
            for key, gang in self.gangs_by_key.items()
        }

    def launch(self, order: Order) -> None:
        for _ in range(self._copies()):
            self.after(self.rng.uniform(0.0, 2.0), lambda: self._arrive(order))

    def stop(self, key: str) -> None:
        for _ in range(self._copies()):
            self.after(self.rng.uniform(0.0, 3.0), lambda: self._remove(key))

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
            for device in gang.order.devices:
                used[device] = used.get(device, 0) + gang.order.mib_per_rank
        for device in self.devices:
            assert used.get(device.id, 0) <= device.capacity_mib, (
                f"{device.id} is over-subscribed: {used[device.id]} MiB"
            )

    def _happens(self, probability: float) -> bool:
        return probability > 0 and self.rng.random() < probability

    def _copies(self) -> int:
        if self.rng.random() < self.faults.lose_message:
            return 0
        return 2 if self.rng.random() < self.faults.double_message else 1

    def _arrive(self, order: Order) -> None:
        """A launch takes effect only while its token is that of an open attempt: a rank asks before it begins."""
        if order.key in self.gangs_by_key or any(
            d.node in self.lost_nodes or d.id in self.absent for d in self._devices_of(order)
        ):
            return
        if not self.store.report_started(order.trial_id, order.attempt, order.token, now=self.clock.now):
            return
        if any(a.key == order.key and a.outcome for a in self.store.attempts(order.trial_id)):
            return
        kept = self.disk.setdefault(order.trial_id, set())
        assert order.resume_step <= 0 or order.resume_step in kept, f"{order.key}: no {order.resume_step} in {kept}"
        gang = SimulatedGang(order, step=max(order.resume_step, 0), recorded=order.resume_step)
        self.gangs_by_key[order.key] = gang
        self.launches[order.key] = self.launches.get(order.key, 0) + 1
        self.after(1.0, lambda: self._step(gang))

    def _devices_of(self, order: Order) -> list[Device]:
        return [device for device in self.devices if device.id in order.devices]

    def _remove(self, key: str) -> None:
        gang = self.gangs_by_key.pop(key, None)
        if gang:
            gang.alive = False

    def _step(self, gang: SimulatedGang) -> None:
        order = gang.order
        if not gang.alive or gang.dead_rank:
            return
        if self.rng.random() < self.faults.lose_node:
            self._lose_node(self._devices_of(order)[0].node)
            return
        if self.rng.random() < self.faults.kill_rank:
            gang.dead_rank = True
            return
        needed_mib = truth_mib(order.candidate.params)
        if order.trial_id == 1:
            needed_mib += int(order.candidate.params.get("accident", 0))
        if needed_mib > order.mib_per_rank and gang.step >= order.steps // 2:
            measured = needed_mib * MIB
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
        gang.step = min(order.steps, gang.step + order.report_every)
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
        if gang.step >= order.steps:
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
                step_seconds=step_seconds(order.candidate.params),
                timed_steps=metric.step,
                now=self.clock.now,
            )
            if accepted:
                gang.recorded = max(gang.recorded, metric.step)
                self.acknowledged[(metric.trial_id, metric.attempt, metric.seq)] = metric.values[order.metric]
            return accepted

        self.send(gang, deliver)

    def send(self, gang: SimulatedGang, deliver: Callable[[], bool]) -> None:
        """A report arrives once, twice, or also much later; refused means stale: the gang ends itself.

        While the sink is away reports wait in order, as in a rank; those of a gang that dies meanwhile are lost.
        """
        gang.unsent.append(deliver)
        if self.clock.now >= gang.sink_back_at:
            self._send_all(gang)
        elif len(gang.unsent) == 1:
            self.after(gang.sink_back_at - self.clock.now, lambda: self._send_all(gang))

    def _send_all(self, gang: SimulatedGang) -> None:
        if gang.dead_rank or self.gangs_by_key.get(gang.order.key) is not gang:
            return
        while gang.unsent:
            self._send(gang, gang.unsent.pop(0))

    def _send(self, gang: SimulatedGang, deliver: Callable[[], bool]) -> None:
        if not deliver():
            self._remove(gang.order.key)
        if self.rng.random() < self.faults.double_message:
            deliver()
        if self.rng.random() < self.faults.late_report:
            self.after(self.rng.uniform(0.0, 60.0), lambda: (deliver(), None)[1])

    def finish(self, gang: SimulatedGang, outcome: Outcome, detail: str) -> None:
        order = gang.order

        def deliver() -> bool:
            accepted = self.store.report_outcome(
                order.trial_id, order.attempt, order.token, outcome, detail, now=self.clock.now
            )
            if accepted and outcome is Outcome.DONE:
                self.completed[order.trial_id] = order.attempt
            return accepted

        self.send(gang, deliver)
        leaves = max(0.0, gang.sink_back_at - self.clock.now) + self.rng.uniform(0.01, 1.0)
        self.after(leaves, lambda: self._remove(order.key))  # a rank stays until its outcome is stored

    def _save(self, gang: SimulatedGang) -> None:
        steps = self.disk[gang.order.trial_id]
        steps.add(gang.step)
        steps -= set(outdated(steps, gang.step, {gang.recorded}))

    def _leave(self, device: Device) -> None:
        for key, gang in list(self.gangs_by_key.items()):
            if device.id in gang.order.devices:
                self._remove(key)
        self.absent.add(device.id)

    def _lose_node(self, node: str) -> None:
        for key, gang in list(self.gangs_by_key.items()):
            if any(device.node == node for device in self._devices_of(gang.order)):
                self._remove(key)
        self.num_lost_nodes += 1
        self.lost_nodes[node] = self.clock.now
        self.after(self.rng.uniform(5.0, 60.0), lambda: (self.lost_nodes.pop(node, None), None)[1])


class SimulatedSizer:
    """Implements ``Sizer``: plans are looked up in the candidate itself, results take a while."""

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self.clock, self.rng = clock, rng
        self.pending: dict[int, tuple[float, Sized | Unsized]] = {}

    def request(self, trial_id: int, demand: Demand, cluster: Cluster) -> None:
        if trial_id in self.pending:
            return
        self.pending[trial_id] = (self.clock.now + self.rng.uniform(0.0, 2.0), self._size(demand, cluster))

    def _size(self, demand: Demand, cluster: Cluster) -> Sized | Unsized:
        params, num_devices = demand.candidate.params, len(cluster.devices)
        answer = choose_learned(lambda extra: self._plan(params, num_devices, extra), demand.own, demand.learned)
        if isinstance(answer, ChosenPlan):
            learned_bytes = demand.learned_bytes(answer.plan.layout)
            known = learn_slow_downs(demand.past, "virtual").get(way_kind(answer.plan))
            factor = known.factor if known else 1.0
            return Sized("s", answer.plan, answer.prediction, answer.reason, learned_bytes, (), factor, factor)
        return Unsized(answer.reason, infeasible=True, offer=cluster.offer)

    def _plan(self, params: Json, num_devices: int, extra: Extra) -> ChosenPlan | NoPlan:
        ranks = int(params["ranks"])
        if ranks > num_devices:
            return NoPlan(f"needs {ranks} devices; there are {num_devices}")
        plan = Plan(1, 4 // ranks, dp_shard=ranks)
        needed = Prediction(int(params["mib"]) * MIB, extra_bytes=extra.bytes_for(plan.layout))
        if needed.reserved_mib > 96:
            return NoPlan(f"needs {needed.reserved_mib} MiB; devices offer 96")
        return ChosenPlan(plan, needed, f"{ranks} ranks of {needed.reserved_mib} MiB")

    def results(self) -> Mapping[int, Sized | Unsized]:
        return {trial: result for trial, (ready, result) in self.pending.items() if ready <= self.clock.now}

    def forget(self, trial_ids: Sequence[int]) -> None:
        for trial_id in trial_ids:
            self.pending.pop(trial_id, None)


class CrashingProxy:
    """Passes calls on, and kills the controller before or after some of them."""

    def __init__(self, target: Any, methods: frozenset[str], rng: random.Random, probability: float) -> None:
        self._target, self._methods, self._rng, self._probability = target, methods, rng, probability

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._target, name)
        if name not in self._methods:
            return method

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._rng.random() < self._probability / 2:
                raise Crash(f"before {name}")
            result = method(*args, **kwargs)
            if self._rng.random() < self._probability / 2:
                raise Crash(f"after {name}")
            return result

        return call


WRITES = frozenset({"move_study", "create_trials", "move_trial", "begin_attempt", "move_attempt", "acquire_lease"})
CALLS = frozenset({"launch", "stop"})


@dataclass
class Simulation:
    """One seed: studies, a cluster, faults; ``run`` ends when every study has, or raises when it never does."""

    store: Store
    seed: int
    faults: Faults = field(default_factory=Faults)
    num_crashes: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.clock = Clock()
        nodes = self.rng.choice([1, 2])
        devices = [Device(f"n{n}/{i}", f"n{n}", i, "virtual", 96) for n in range(nodes) for i in range(4)]
        self.executor = SimulatedExecutor(self.store, self.clock, self.rng, self.faults, devices)
        self.tokens = 0
        for number in range(self.rng.choice([1, 2])):
            self.store.create_study(self.spec(number), now=self.clock.now)
        self.start_controller()

    def spec(self, number: int) -> Json:
        return {
            "name": f"study {number}",
            "workload": "vit_digits",
            "objective": {"metric": "score", "direction": "maximize"},
            "space": {
                "mib": {"choice": [10, 30, 60, 90, 120]},
                "ranks": {"choice": [1, 2, 4]},
                "spike": {"choice": [0, 15]},
            },
            "search": {"sampler": "random", "seed": self.seed},
            "stopping": {"rule": self.rng.choice(["asha", "none"]), "min_steps": 2, "reduction_factor": 2},
            "budget": {
                "trials": self.rng.randint(3, 10),
                "steps": 8,
                "report_every": 2,
                "max_lost": 1000,
                "max_oom": 10,
            },
        }

    def start_controller(self) -> None:
        def new_token() -> str:
            self.tokens += 1
            return f"token-{self.tokens}"

        self.controller = Controller(
            CrashingProxy(self.store, WRITES, self.rng, self.faults.crash),  # type: ignore[arg-type]
            CrashingProxy(self.executor, CALLS, self.rng, self.faults.crash),  # type: ignore[arg-type]
            SimulatedSizer(self.clock, self.rng),
            lease_seconds=2.0,
            clock=self.clock,
            new_token=new_token,
        )

    def run(self, limit_seconds: float = 20_000.0) -> None:
        end = self.clock.now + limit_seconds
        while any(study.state in LIVE_STUDIES for study in self.store.studies()) or self.store.open_attempts():
            assert self.clock.now < end, f"seed {self.seed}: not finished after {limit_seconds} virtual seconds"
            try:
                self.controller.tick()
            except Crash:
                self.num_crashes += 1
                self.executor.advance(self.clock.now + self.rng.uniform(0.0, 30.0))
                self.start_controller()
            self.check_ledger()
            self.executor.advance(self.clock.now + 0.7)
        self.executor.advance(self.clock.now + 120.0)  # let the latest of the late reports arrive
        self.check_end()

    def check_ledger(self) -> None:
        reserved: dict[str, int] = {}
        for attempt in self.store.open_attempts():
            assert len(set(attempt.devices)) == attempt.plan.world_size, "a gang is whole"
            for device in attempt.devices:
                reserved[device] = reserved.get(device, 0) + attempt.mib_per_rank
        assert all(mib <= 96 for mib in reserved.values()), f"seed {self.seed}: over-subscribed {reserved}"

    def check_end(self) -> None:
        for study in self.store.studies():
            trials = self.store.trials(study.id)
            assert [trial.number for trial in trials] == list(range(study.spec["budget"]["trials"])), (
                "none lost or doubled"
            )
            for trial in trials:
                self.check_trial(trial)

    def check_trial(self, trial: Trial) -> None:
        where = f"seed {self.seed}, trial {trial.id}"
        assert trial.state in (TrialState.COMPLETED, TrialState.PRUNED, TrialState.INFEASIBLE), f"{where}: {trial}"
        may_fit = trial.params["mib"] + trial.params.get("spike", 0) <= 60 and not self.executor.num_lost_nodes
        if trial.state is TrialState.INFEASIBLE and may_fit:
            num_devices = len(self.executor.cluster().devices)
            assert trial.params["ranks"] > num_devices, f"{where}: it fits on {num_devices} devices"
        if trial.state is TrialState.COMPLETED:
            assert trial.value == objective(trial.id, trial.attempt, 8), f"{where}: value of another attempt"
            done = [a.attempt for a in self.store.attempts(trial.id) if a.outcome is Outcome.DONE]
            assert done == [trial.attempt] == [self.executor.completed[trial.id]], f"{where}: completed by {done}"
        stored = {(m.trial_id, m.attempt, m.seq): m for m in self.store.metrics(trial.id)}
        steps = [m.step for m in stored.values()]
        assert len(set(steps)) == len(steps), f"{where}: a step counts twice"
        newest = {}
        for (trial_id, attempt, seq), value in self.executor.acknowledged.items():
            if trial_id == trial.id:
                newest[round(value)] = max(newest.get(round(value), (0, 0)), (attempt, seq))
        assert sorted(newest) == sorted(steps), f"{where}: acknowledged steps {sorted(newest)}, stored {sorted(steps)}"
