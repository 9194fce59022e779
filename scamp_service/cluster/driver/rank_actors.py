"""Carries out the instructions of ``RankStates`` with Ray's actors, and turns their answers into events.

It decides nothing: see ``states``. Calls to ranks are sent here and their answers taken, but nothing waits for one.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import ray

from scamp_service.cluster.driver.calls import Calls
from scamp_service.cluster.driver.rank_processes import (
    end_process,
    is_of_ray,
    kill_rank,
    nodes_of_host,
    on_node,
    process_of,
    stderr_end,
)
from scamp_service.cluster.driver.states import events, instructions
from scamp_service.cluster.driver.states.events import Answer, Call, Event, Node
from scamp_service.cluster.driver.states.instructions import Instruction
from scamp_service.cluster.driver.states.rank_record import RankPhase
from scamp_service.cluster.driver.states.rank_states import RankStates
from scamp_service.errors import Deposed
from scamp_service.host import Process

log = logging.getLogger("scamp.ray")

HOLD_SECONDS = 60.0


class RankActors:
    """The actors of ranks. Not thread-safe: its owner holds a lock."""

    def __init__(
        self,
        states: RankStates,
        create: Callable[[str, str], Any],
        calls: Calls,
        *,
        node_id: str,
        term: int,
        may_act: Callable[[], bool],
    ) -> None:
        """``create`` makes the actor of a rank with a name on a device; ``node_id`` is this node."""
        self._states, self._create, self._calls = states, create, calls
        self._node_id, self._term, self._may_act = node_id, term, may_act
        self._actors: dict[str, Any] = {}
        self._to_do: deque[Instruction] = deque()  # an error leaves the rest for the next event

    def handle(self, event: Event) -> None:
        """Let the states handle an event, and carry out what they instruct."""
        self._to_do.extend(self._states.handle(event, time.monotonic(), self._may_act()))
        while self._to_do:
            self._carry_out(self._to_do.popleft())

    def find(self, name: str, actor: Any) -> None:
        """Take over the actor of a rank of an earlier controller."""
        self._actors[name] = actor
        self.handle(events.RankFound(name, name.split("/", 1)[1].rpartition("/")[0]))

    def look(self, nodes: tuple[Node, ...]) -> None:
        """See which processes of ending ranks are gone. ``nodes`` are those whose devices can be used."""
        ending = [rank for rank in self._states.ranks.values() if rank.phase is RankPhase.ENDING and rank.is_here]
        gone = frozenset(rank.name for rank in ending if rank.status and rank.status.process.is_gone)
        self.handle(events.Looked(nodes, gone))

    def any_live_here(self) -> bool:
        """Whether a rank process of this host has not ended."""
        here = [rank.status for rank in self._states.ranks.values() if rank.is_here]
        return any(status is not None and not status.process.is_gone for status in here)

    # --- instructions -------------------------------------------------------------------------------------------------

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case instructions.StartRank(name, device):
                self._start(name, device)
            case instructions.RunAttempt():
                self._run(instruction)
            case instructions.JoinAttempt(name, key):
                self._calls.expect(self._actors[name].join.remote(key), Call.RUN, name)
            case instructions.StopAttempt(name, key, keep):
                self._actors[name].stop.remote(key, self._term, keep)
            case instructions.AskStatus(name):
                self._calls.expect(self._actors[name].status.remote(self._term), Call.STATUS, name)
            case instructions.HoldCall(name):
                self._calls.expect(self._actors[name].hold.remote(HOLD_SECONDS), Call.HOLD, name)
            case instructions.FindProcess(name):
                self._find_process(name)
            case instructions.KillActor(name):
                ray.kill(self._actors[name], no_restart=True)
            case instructions.KillProcess(_, process):
                process.kill()
            case instructions.KillProcessOn(name, process, node_id):
                task = ray.remote(end_process).options(**on_node(node_id), max_retries=0)
                self._calls.expect(task.remote(process), Call.KILL, name)
            case instructions.ForgetRank(name):
                del self._actors[name]

    def _start(self, name: str, device: str) -> None:
        try:
            self._actors[name] = self._create(name, device)
        except Exception as error:  # Ray's GCS does not answer
            log.exception("the rank %s does not start", name)
            self._to_do = deque(later for later in self._to_do if name not in later.names)
            self.handle(events.StartFailed(name, str(error)))

    def _run(self, run: instructions.RunAttempt) -> None:
        """Call ``run`` on the ranks of a gang. None of these calls waits: Ray queues them while a rank starts."""
        rendezvous = None
        if run.host is not None:
            first = self._actors[run.names[0]]
            rendezvous = first.rendezvous.remote(run.order.key, len(run.names), run.host, self._term)
        for number, name in enumerate(run.names):
            ref = self._actors[name].run.remote(run.order, number, rendezvous, self._term)
            self._calls.expect(ref, Call.RUN, name)

    def _find_process(self, name: str) -> None:
        node_id, pid = process_of(self._actors[name])
        if pid and node_id in nodes_of_host(self._node_id) and is_of_ray(pid):
            self.handle(events.ProcessFound(name, Process.of(pid)))
        elif pid:
            ray.remote(kill_rank).options(**on_node(node_id)).remote(pid)

    # --- answers ------------------------------------------------------------------------------------------------------

    def receive(self, call: Call, name: str, ref: Any) -> None:
        """Take the answer to a call to the rank with this name, or the error in its place."""
        self.handle(self._answer(call, name, ref))

    def _answer(self, call: Call, name: str, ref: Any) -> Answer:
        try:
            answer = ray.get(ref)
        except ray.exceptions.ActorUnavailableError:  # unreachable for now, not known to be dead
            return events.CallUnavailable(name, call)
        except Deposed:
            log.warning("a rank obeys a newer controller; this one changes nothing any more")
            return events.CallRefused(name, call)
        except ray.exceptions.RayError as error:
            return events.CallFailed(name, call, str(error), self._stderr_of(name))
        match call:
            case Call.STATUS:
                return events.StatusArrived(name, answer, answer.process.is_here)
            case Call.RUN:
                return events.AttemptEnded(name, answer)
            case Call.HOLD:
                return events.HoldEnded(name)
            case Call.KILL:
                return events.KillAnswered(name, answer)

    def _stderr_of(self, name: str) -> str:
        rank = self._states.ranks.get(name)
        return stderr_end(rank.status.process.pid) if rank is not None and rank.is_here and rank.status else ""
