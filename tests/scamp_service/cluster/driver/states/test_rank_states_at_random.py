"""The state machine of ranks against a simulated cluster in which everything fails at times, from seeds."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field, replace
from itertools import count

import pytest

from scamp_service.cluster.driver.states import events, instructions
from scamp_service.cluster.driver.states.events import Call, Event, Node
from scamp_service.cluster.driver.states.instructions import Instruction
from scamp_service.cluster.driver.states.rank_record import RankPhase
from scamp_service.cluster.driver.states.rank_states import RankStates
from scamp_service.cluster.worker.answers import Ended, RankStatus
from scamp_service.control.executor import Order
from scamp_service.host import Process
from scamp_service.lifecycle import Outcome
from tests.ranks import ORDER

NODES = (Node("1", 4, {"a/0": 96, "a/1": 96}), Node("2", 2, {"b/0": 96}))
NODE_OF = {device: node for node in NODES for device in node.devices}
VERSION = "ours"


@dataclass
class SimulatedRank:
    """A rank's process. Calls are queued until it answers; a frozen one does not.

    As soon as Ray is to kill it, Ray calls it dead; a frozen one lives on, unless it has only begun to start.
    """

    is_alive: bool = True
    is_frozen: bool = False
    is_starting: bool = True
    is_lost: bool = False  # Ray calls it dead
    is_told: bool = False  # Ray has told the executor that it is dead
    attempt: str = ""
    ended: Ended | None = None
    code: str | None = None
    calls: list[Call] = field(default_factory=list)


class SimulatedCluster:
    """Carries out instructions and checks each; sends events in a random order."""

    def __init__(self, seed: int) -> None:
        self.random, ids = random.Random(seed), count()
        self.states = RankStates(new_id=lambda: f"{next(ids)}", version=VERSION, lease_seconds=60.0, max_per_device=2)
        self.now, self.fault_rate = 1000.0, 0.03
        self.ranks: dict[str, SimulatedRank] = {}  # also those that have ended
        self.actors: set[str] = set()  # names that have not been forgotten
        self.orders: list[Order] = []
        self.send(events.NodesSeen({"a": "node a", "b": "node b"}, frozenset()))

    def fails(self) -> bool:
        return self.random.random() < self.fault_rate

    def send(self, event: Event) -> None:
        to_do = deque(self.states.handle(event, self.now, may_act=True))
        while to_do:
            instruction = to_do.popleft()
            if isinstance(instruction, instructions.StartRank) and self.fails():
                to_do = deque(later for later in to_do if instruction.name not in later.names)
                to_do.extend(self.states.handle(events.StartFailed(instruction.name, "no"), self.now, may_act=True))
                continue
            self.check(instruction)
            for name in instruction.names:
                self.carry_out(instruction, name)
        self.check_gangs()

    def check(self, instruction: Instruction) -> None:
        match instruction:
            case instructions.StartRank(name, _):
                assert name not in self.ranks
            case instructions.KillActor(name) | instructions.KillProcess(name, _) | instructions.KillProcessOn(name):
                assert name in self.actors
            case instructions.ForgetRank(name):
                assert not self.ranks[name].is_alive, "its memory would be given away"
            case _:
                for name in instruction.names:
                    assert name in self.actors
                    record = self.states.ranks[name]
                    assert not (record.phase is RankPhase.ENDING and self.ranks[name].is_told), "a call to a dead rank"

    def carry_out(self, instruction: Instruction, name: str) -> None:
        if isinstance(instruction, instructions.StartRank):
            self.ranks[name] = SimulatedRank(is_frozen=self.fails())
            self.actors.add(name)
        rank = self.ranks[name]
        match instruction:
            case instructions.RunAttempt(_, order):
                assert not rank.attempt or not rank.is_alive, "a rank of two gangs"
                assert rank.code in (None, order.candidate.code)
                rank.attempt, rank.ended, rank.code = order.key, None, order.candidate.code
                rank.calls.append(Call.RUN)
            case instructions.JoinAttempt(_, key):
                assert rank.attempt in ("", key)
                rank.calls.append(Call.RUN)
            case instructions.StopAttempt(_, key) if rank.attempt == key and not self.fails():
                self.end_attempt(rank, Outcome.STOPPED)
            case instructions.AskStatus():
                assert Call.STATUS not in rank.calls
                rank.calls.append(Call.STATUS)
            case instructions.HoldCall():
                assert Call.HOLD not in rank.calls
                rank.calls.append(Call.HOLD)
            case instructions.KillActor() if not self.fails():
                rank.is_lost = True
                rank.is_alive = rank.is_alive and rank.is_frozen and not rank.is_starting
            case instructions.KillProcess():
                rank.is_alive = False
            case instructions.KillProcessOn():
                rank.is_alive = False
                rank.calls.append(Call.KILL)
            case instructions.FindProcess() if name.startswith("rank/a"):
                self.send(events.ProcessFound(name, process(name)))
            case instructions.FindProcess():
                rank.is_alive = False
            case instructions.ForgetRank():
                self.actors.remove(name)

    def end_attempt(self, rank: SimulatedRank, outcome: Outcome | None) -> None:
        went_well = outcome in (Outcome.DONE, Outcome.STOPPED)
        rank.attempt, rank.ended = "", Ended(outcome, "", went_well and not self.fails())

    def check_gangs(self) -> None:
        """An attempt that is not listed holds no memory."""
        listed = self.states.gangs(self.now).keys()
        running = {rank.attempt for rank in self.ranks.values() if rank.is_alive and rank.attempt}
        assert running <= listed

    def turn(self) -> None:
        """Some time passes, and somebody does something."""
        self.now += self.random.choice([0.05, 0.5, 2.0])
        living = [rank for rank in self.ranks.values() if rank.is_alive]
        if self.fails() and living:
            self.random.choice(living).is_alive = False
        if self.fails() and living:
            self.random.choice(living).is_frozen = True
        for rank in living:
            if rank.attempt and not rank.is_frozen and self.random.random() < 0.05:
                self.end_attempt(rank, None if self.fails() else Outcome.ERROR if self.fails() else Outcome.DONE)
        match self.random.randrange(12):
            case 0:
                self.launch()
            case 1 if self.orders:
                self.send(events.StopOrdered(self.random.choice(self.orders[-4:]).key))
            case 2:
                self.send(events.ProbeDue())
            case 3 | 4:
                self.look()
            case _:
                self.answer()

    def launch(self) -> None:
        devices = tuple(self.random.sample([*NODE_OF], self.random.choice([1, 1, 2, 3])))
        candidate = replace(ORDER.candidate, code=self.random.choice([None, "mine", "other"]))
        order = replace(ORDER, trial_id=len(self.orders) + 1, devices=devices, candidate=candidate)
        self.orders.append(order)
        self.send(events.LaunchOrdered(order, tuple(NODE_OF[device] for device in devices)))

    def look(self) -> None:
        ending = [rank for rank in self.states.ranks.values() if rank.phase is RankPhase.ENDING and rank.is_here]
        self.send(events.Looked(NODES, frozenset(r.name for r in ending if not self.ranks[r.name].is_alive)))

    def answer(self) -> None:
        """One call to some rank is answered, if that rank can."""
        name = self.random.choice([*self.ranks] or [""])
        rank = self.ranks.get(name, SimulatedRank())
        rank.is_lost |= not rank.is_alive
        is_busy = rank.is_frozen and not rank.is_lost
        calls = [call for call in rank.calls if call is Call.KILL or not is_busy]
        if not rank.is_lost and rank.attempt:
            calls = [call for call in calls if call is not Call.RUN]
        if not calls:
            return
        call = self.random.choice(calls)
        rank.calls.remove(call)
        self.send(self.answer_to(call, name, rank))

    def answer_to(self, call: Call, name: str, rank: SimulatedRank) -> Event:
        if call is Call.KILL:
            return events.CallFailed(name, call, "no node") if self.fails() else events.KillAnswered(name, True)
        if rank.is_lost:
            rank.is_told |= call is not Call.RUN
            return events.CallFailed(name, call, "it died")
        if self.fails():
            return events.CallUnavailable(name, call)
        match call:
            case Call.STATUS:
                rank.is_starting = False
                status = RankStatus(process(name), rank.attempt, 0, 1, True, VERSION, rank.code)
                return events.StatusArrived(name, status, is_here=name.startswith("rank/a"))
            case Call.RUN:
                return events.AttemptEnded(name, rank.ended or Ended(None, "it never began", True))
            case _:
                return events.HoldEnded(name)

    def settle(self) -> None:
        """No more faults; every gang is stopped, and whoever can answer does."""
        self.fault_rate = 0.0
        for _ in range(200):
            self.now += 1.0
            for key in self.states.gangs(self.now):
                self.send(events.StopOrdered(key))
            self.send(events.ProbeDue())
            self.look()
            for _ in range(4 * len(self.actors)):
                self.answer()


def process(name: str) -> Process:
    return Process("kernel", 7, name)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_fails_no_dead_rank_is_called_no_gang_is_lost_and_every_device_is_ready_again(seed: int) -> None:
    cluster = SimulatedCluster(seed)
    for _ in range(250):
        cluster.turn()
    cluster.settle()
    states = cluster.states
    assert not states.gangs(cluster.now) and not states.closed()
    assert {rank.phase for rank in states.ranks.values()} == {RankPhase.READY}
    for device in NODE_OF:
        assert [rank.code for rank in states.ranks.idle(device)][:1] == [None] and len(states.ranks.on(device)) <= 2
    assert {name for name, rank in cluster.ranks.items() if rank.is_alive} == cluster.actors == states.ranks.keys()
