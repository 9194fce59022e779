"""One tape of events for two executors: that of simulations, and the state machine of live ranks with fake processes.

The simulator runs first: its reports join the tape with their times. The live ranks then get the same reports, deaths,
devices and studies. Everything that the controller decides is logged.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from placement.model import Cluster, Device, Ready
from placement.packing.policy import Policy
from placement.simulation.progress import Progress, domains_of
from scamp_service.cluster.driver.states import events, instructions
from scamp_service.cluster.driver.states.causes import cause_of_death
from scamp_service.cluster.driver.states.events import Call, Event, Node
from scamp_service.cluster.driver.states.rank_record import RankPhase
from scamp_service.cluster.driver.states.rank_states import RankStates
from scamp_service.cluster.worker.answers import Ended, RankStatus
from scamp_service.control.controller import Controller, TimeAndTokens
from scamp_service.control.decide.effects import Effect
from scamp_service.control.decide.snapshot import Packing
from scamp_service.control.executor import Executor, GangState, GangStatus, Order
from scamp_service.host import Process
from scamp_service.lifecycle import LIVE_STUDIES, Outcome
from scamp_service.model import Json
from scamp_service.simulation.executor import Trainings, VirtualExecutor
from scamp_service.store.parts.reports import Reports
from scamp_service.store.store import Store
from tests.quick_store import empty_store
from tests.simulation.candidates import objective
from tests.simulation.faults import Clock
from tests.simulation.services import SimulatedProposer, SimulatedSizer
from tests.simulation.world import KEEP_SECONDS

TICK_SECONDS = 0.5
LIMIT_SECONDS = 2_000.0
MAX_GANGS = 2
DIED = "it died"
LEFT = "node n1 has left the cluster"
PID = 7


@dataclass(frozen=True, slots=True)
class Taped:
    """An event of the tape: ``study``, ``death`` of the gangs on a device, ``leave`` or ``join`` of a node, or a call
    of the store by which ranks report."""

    at: float
    kind: str
    value: Any


def draw_tape(seed: int) -> list[Taped]:
    """Studies, deaths, and a node that leaves and comes back."""
    source, start = random.Random(seed), Clock().now
    tape = [Taped(0.0, "study", _spec(source, 0)), Taped(source.uniform(0, 20), "study", _spec(source, 1))]
    tape += [
        Taped(source.uniform(2, 40), "death", f"n{source.randrange(2)}/{source.randrange(2)}")
        for _ in range(source.randint(1, 4))
    ]
    left = source.uniform(2, 30)
    tape += [Taped(left, "leave", "n1"), Taped(left + source.uniform(1, 20), "join", "n1")]
    return sorted((replace(event, at=start + event.at) for event in tape), key=lambda event: event.at)


def _spec(source: random.Random, number: int) -> Json:
    halving = {"rule": "asha", "min_steps": 2, "reduction_factor": 2}
    return {
        "name": f"study {number}",
        "workload": "vit_digits",
        "objective": {"metric": "score", "direction": "maximize"},
        "space": {
            "mib": {"choice": [10, 40, 60, 90]},
            "ranks": {"choice": [1, 2]},
            "most_ranks": {"choice": [1, 4]},
        },
        "search": {"sampler": "random", "seed": source.randrange(99)},
        "stopping": source.choice([halving, {**halving, "promote": True}, {"rule": "none"}]),
        "budget": {"trials": source.randint(3, 6), "steps": 8, "report_every": 2, "max_lost": 1000},
    }


def devices_of(nodes: Sequence[str]) -> Cluster:
    return Cluster(tuple(Device(f"{node}/{i}", node, i, "virtual", 96) for node in nodes for i in range(2)))


class RecordedReports:
    """Passes the reports of ranks on to a store, and records them."""

    def __init__(self, reports: Reports, clock: Clock) -> None:
        self._reports, self._clock = reports, clock
        self.tape: list[Taped] = []

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        is_accepted = getattr(self._reports, name)(*args, **kwargs)
        self.tape.append(Taped(self._clock.now, name, (args, kwargs, is_accepted)))
        return is_accepted

    def start(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("start", *args, **kwargs)

    def add(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("add", *args, **kwargs)

    def end(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("end", *args, **kwargs)


class SimulatorWithFaults(VirtualExecutor):
    """The executor of simulations, where ranks die, and devices leave and join."""

    def __init__(self, reports: RecordedReports, nodes: list[str]) -> None:
        all_devices = devices_of(["n0", "n1"])
        recorded: Any = reports
        trainings = Trainings(_seconds_of, _values, lambda order: None, 1.0)
        super().__init__(recorded, all_devices, Progress(domains_of(all_devices)), trainings)
        self.nodes = nodes
        self.broken: dict[str, str] = {}

    def cluster(self) -> Cluster:
        return devices_of(self.nodes)

    def gangs(self) -> Mapping[str, GangStatus]:
        broken = {key: GangStatus(GangState.BROKEN, why) for key, why in self.broken.items()}
        return dict(sorted({**super().gangs(), **broken}.items()))

    def launch(self, order: Order) -> None:
        """As live: no effect where a device has left."""
        if {device.id for device in self.cluster().devices}.issuperset(order.devices) and order.key not in self.broken:
            super().launch(order)

    def stop(self, key: str, *, keep: bool = False) -> None:
        self.broken.pop(key, None)
        super().stop(key, keep=keep)

    def break_on(self, devices: set[str], why: str) -> None:
        for key, gang in list(self._gangs.items()):
            if on := [device for device in gang.order.devices if device in devices]:
                super().stop(key)
                self.broken[key] = why.format(device=on[0])


def _seconds_of(order: Order) -> float:
    return 1.0 / order.plan.world_size


def _values(order: Order, step: int) -> Mapping[str, float]:
    return {"score": objective(order.trial_id, order.attempt, step)}


@dataclass
class FakeRank:
    """The process of a rank, which answers at once."""

    device: str
    is_alive: bool = True
    attempt: str = ""
    num_signs: int = 0


class LiveRanks:
    """The executor of a service as its state machine has it; every instruction is carried out at once.

    But when attempts with a checkpoint have ended is on the tape.
    """

    def __init__(self, clock: Clock, nodes: list[str]) -> None:
        ids = count()
        self._clock, self.nodes = clock, nodes
        self._states = RankStates(
            new_id=lambda: str(next(ids)), version="ours", lease_seconds=60.0, max_per_device=MAX_GANGS
        )
        self._ranks: dict[str, FakeRank] = {}
        self._events: deque[Event] = deque()
        self.see_nodes(frozenset())

    def cluster(self) -> Cluster:
        return devices_of(self.nodes)

    def gangs(self) -> Mapping[str, GangStatus]:
        return {key: replace(gang, quiet_seconds=0.0, doing="") for key, gang in self._states.gangs(self._now).items()}

    def silent(self) -> frozenset[str]:
        return self._states.ranks.silent()

    def put_off(self) -> frozenset[str]:
        return self._states.put_off(self._now)

    def closed(self) -> Mapping[str, str]:
        return self._states.closed()

    def leaving(self) -> Mapping[str, str]:
        return {}

    def ready(self) -> Ready:
        return self._states.ranks.ready()

    def launch(self, order: Order) -> None:
        nodes = {device: node for node in self._nodes() for device in node.devices}
        if all(device in nodes for device in order.devices):
            self.send(events.LaunchOrdered(order, tuple(nodes[device] for device in order.devices)))

    def stop(self, key: str, *, keep: bool = False) -> None:
        self.send(events.StopOrdered(key, KEEP_SECONDS if keep else 0.0))

    def see_nodes(self, drained: frozenset[str]) -> None:
        self.send(events.NodesSeen({node: f"node {node}" for node in self.nodes}, drained))

    def leave(self, node: str) -> None:
        for rank in self._ranks.values():
            rank.is_alive = rank.is_alive and not rank.device.startswith(node)
        self.see_nodes(frozenset({node}))
        self.send(events.DevicesLeft(tuple(device.id for device in devices_of([node]).devices), LEFT))
        self._report_deaths()

    def die(self, device: str) -> None:
        for rank in self._ranks.values():
            rank.is_alive = rank.is_alive and not (rank.device == device and rank.attempt)
        self._report_deaths()

    def end(self, key: str, outcome: Outcome) -> None:
        for name, rank in self._ranks.items():
            if rank.attempt == key and rank.is_alive:
                rank.attempt = ""
                self._events.append(events.AttemptEnded(name, Ended(outcome, "", True)))
        self.settle()

    def turn(self) -> None:
        """Time has passed."""
        for rank in self._ranks.values():
            rank.num_signs += 1
        self.send(events.ProbeDue())
        self.settle()

    def send(self, event: Event) -> None:
        self._events.append(event)
        self.settle()

    def settle(self) -> None:
        """Handle all that waits, then look until nothing is gone any more."""
        while True:
            while self._events:
                for instruction in self._states.handle(self._events.popleft(), self._now, may_act=True):
                    self._carry_out(instruction)
            ending = [rank for rank in self._states.ranks.values() if rank.phase is RankPhase.ENDING]
            gone = frozenset(rank.name for rank in ending if not self._ranks[rank.name].is_alive)
            for instruction in self._states.handle(events.Looked(self._nodes(), gone), self._now, may_act=True):
                self._carry_out(instruction)
            if not gone and not self._events:
                return

    def _carry_out(self, instruction: instructions.Instruction) -> None:
        match instruction:
            case instructions.StartRank(name, device):
                self._ranks[name] = FakeRank(device)
            case instructions.RunAttempt(names, order):
                for name in names:
                    self._ranks[name].attempt = order.key
            case instructions.StopAttempt(name, key, keep=False) if self._ranks[name].attempt == key:
                self._ranks[name].attempt = ""
                self._events.append(events.AttemptEnded(name, Ended(Outcome.STOPPED, "", True)))
            case instructions.AskStatus(name) if self._ranks[name].is_alive:
                rank = self._ranks[name]
                process = Process("kernel", PID, name)
                status = RankStatus(process, rank.attempt, 0, 1, True, "ours", None, rank.num_signs)
                self._events.append(events.StatusArrived(name, status, is_here=True))
            case instructions.KillActor(name) | instructions.KillProcess(name, _):
                self._ranks[name].is_alive = False

    def _report_deaths(self) -> None:
        for rank in self._states.ranks.values():
            if not self._ranks[rank.name].is_alive:
                self._events.append(events.CallFailed(rank.name, Call.HOLD, DIED))
        self.settle()

    def _nodes(self) -> tuple[Node, ...]:
        return tuple(
            Node(node, 64, {device.id: device.capacity_mib for device in devices_of([node]).devices})
            for node in sorted(self.nodes)
        )

    @property
    def _now(self) -> float:
        return self._clock.now


class LoggedController(Controller):
    """Logs each effect with its time."""

    log: list[tuple[float, Effect]]

    def apply(self, effect: Effect) -> None:
        self.log.append((self._clock(), effect))
        super().apply(effect)


@dataclass
class Run:
    """The controller with one of the executors, in virtual time."""

    tape: Sequence[Taped]
    policy: Policy
    clock: Clock = field(default_factory=Clock)
    nodes: list[str] = field(default_factory=lambda: ["n0", "n1"])
    log: list[tuple[float, Effect]] = field(default_factory=list)

    def simulate(self) -> list[Taped]:
        """Run the tape in the simulator; returns it with the reports of ranks, all in the order in which they came."""
        store = empty_store()
        recorded = RecordedReports(store.reports, self.clock)
        executor = SimulatorWithFaults(recorded, self.nodes)

        def play(event: Taped) -> None:
            recorded.tape.append(replace(event, at=self.clock.now))
            if event.kind == "death":
                died = "a rank on {device} died: " + cause_of_death(DIED, PID)
                executor.break_on({event.value}, died)
            elif event.kind == "leave":
                executor.break_on({device.id for device in devices_of([event.value]).devices}, LEFT)

        for _ in self._ticks(store, executor, play):
            executor.advance(self.clock.now)
        return recorded.tape

    def live(self) -> None:
        """Run the tape, which has the reports of ranks, with live ranks."""
        store = empty_store()
        ranks = LiveRanks(self.clock, self.nodes)

        def play(event: Taped) -> None:
            match event.kind:
                case "death":
                    ranks.die(event.value)
                case "leave":
                    ranks.leave(event.value)
                case "join":
                    ranks.see_nodes(frozenset())
                case "start" | "add" | "end":
                    args, kwargs, is_accepted = event.value
                    assert getattr(store.reports, event.kind)(*args, **kwargs) == is_accepted, f"{event.kind} of {args}"
                    if event.kind == "end":
                        ranks.end(f"{args[0]}/{args[1]}", args[3])

        for _ in self._ticks(store, ranks, play):
            ranks.turn()

    def _ticks(self, store: Store, executor: Executor, play: Any) -> Iterator[None]:
        source = random.Random(1)
        sizer, proposer = SimulatedSizer(self.clock, source), SimulatedProposer(self.clock, source)
        tokens = count()
        controller = LoggedController(
            store,
            executor,
            sizer,
            proposer,
            packing=Packing(max_gangs_per_device=MAX_GANGS, policy=self.policy),
            time_and_tokens=TimeAndTokens(self.clock, self.clock, lambda: f"token-{next(tokens)}"),
        )
        controller.log = self.log
        to_come = deque(self.tape)
        end = self.clock.now + LIMIT_SECONDS
        while self.clock.now < end:
            yield
            while to_come and to_come[0].at <= self.clock.now:
                event = to_come.popleft()
                if event.kind == "study":
                    store.studies.create(event.value, now=self.clock.now)
                elif event.kind == "leave":
                    self.nodes.remove(event.value)
                elif event.kind == "join":
                    self.nodes.append(event.value)
                play(event)
            controller.tick()
            is_live = any(study.state in LIVE_STUDIES for study in store.studies.page())
            if not (to_come or is_live or store.attempts.open()):
                return
            self.clock.now += TICK_SECONDS
        raise AssertionError(f"not finished after {LIMIT_SECONDS} virtual seconds")
