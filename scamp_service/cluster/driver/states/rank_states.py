"""The state machine of ranks and gangs: an event changes the state of ranks, and leads to instructions.

This package decides which idle rank takes an attempt, when a spare rank starts, when a silent one is ended, and how a
broken gang ends. A rank that was told to end still counts until its process is known to be gone: nothing starts on its
device, and its gang stays listed. ``RankActors`` carries the instructions out with Ray, and sends the events.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import assert_never

from scamp_service import patience
from scamp_service.cluster.driver.states import events, instructions
from scamp_service.cluster.driver.states.causes import cause_in, cause_of_death, first_line, silence_reason
from scamp_service.cluster.driver.states.events import Answer, Call, Event, LaunchOrdered, Node
from scamp_service.cluster.driver.states.gang_states import STOP_GRACE_SECONDS, GangStates
from scamp_service.cluster.driver.states.idle_ranks import suitable, superfluous
from scamp_service.cluster.driver.states.instructions import Instruction
from scamp_service.cluster.driver.states.rank_record import RankPhase, RankRecord, has_ended
from scamp_service.cluster.driver.states.rank_table import RankTable
from scamp_service.cluster.driver.states.start_failures import StartFailures
from scamp_service.cluster.worker.answers import Ended, RankStatus
from scamp_service.control.executor import GangStatus, Order
from scamp_service.lifecycle import Outcome

log = logging.getLogger("scamp.ray")

PROBE_SECONDS = 5.0  # between two questions to a rank how it is
ORDER_SECONDS = 60.0
"""A launch that was put off, and is not ordered again for so long, is forgotten."""
PUT_OFF_SECONDS = 1.0  # for which a launch that was put off keeps spare ranks from starting


class RankStates:
    """Ranks by name, and their gangs. Not thread-safe. ``now`` is always in seconds of one monotonic clock."""

    def __init__(self, *, new_id: Callable[[], str], version: str, lease_seconds: float, max_per_device: int) -> None:
        """``new_id`` returns a new id for each rank, ``version`` is that of our sources.

        ``lease_seconds`` is the silence after which ranks end themselves; a device takes up to ``max_per_device``.
        """
        self._new_id, self._version = new_id, version
        self._lease_seconds, self._max_per_device = lease_seconds, max_per_device
        self.ranks = RankTable()
        self._gangs = GangStates()
        self._failures = StartFailures()
        self._alive: Mapping[str, str] = {}
        self._drained: frozenset[str] = frozenset()
        self._put_off_until = -math.inf
        self._put_off: dict[str, float] = {}  # launch that waits for others → when it was last ordered
        self._now, self._may_act = -math.inf, False  # those of the present event
        self._instructions: list[Instruction] = []

    def handle(self, event: Event, now: float, may_act: bool) -> list[Instruction]:
        """Handle an event at ``now``, and return the instructions to carry out, in this order.

        Ranks start and end only if ``may_act``, that is, if no other controller can lead now.
        """
        self._now, self._may_act, self._instructions = now, may_act, []
        match event:
            case events.LaunchOrdered():
                self._launch(event)
            case events.StopOrdered():
                self._stop(event)
            case events.EndOrdered():
                for rank in self.ranks.values():
                    self._end(rank)
            case events.RankFound(name, device):
                self._add(name, device, RankPhase.FOUND)
            case events.Looked(nodes, gone):
                self._look(nodes, gone)
            case events.ProbeDue():
                self._probe()
            case events.Paused(seconds):
                for rank in self.ranks.values():
                    rank.excuse(seconds)
            case events.NodesSeen(alive, drained):
                self._alive, self._drained = alive, drained
            case events.DevicesLeft(devices, why):
                self._leave(devices, why)
            case _:  # an answer
                if (heard := self.ranks.get(event.name)) is not None:  # otherwise it is forgotten
                    self._hear(heard, event)
        return self._instructions

    # --- what exists now ----------------------------------------------------------------------------------------------

    def gangs(self, now: float) -> dict[str, GangStatus]:
        """Status of every attempt that has a rank, and until it is stopped of one that only this object knows to be
        broken."""
        keys = {key for rank in self.ranks.values() for key in rank.keys} | self._gangs.unexplained()
        return {key: self._gangs.status(key, self.ranks.members(key), now) for key in sorted(keys)}

    def put_off(self, now: float) -> frozenset[str]:
        """Attempts whose launch waits until their nodes have started other ranks; they are ordered again and again."""
        self._put_off = {key: at for key, at in self._put_off.items() if now - at < ORDER_SECONDS}
        return frozenset(self._put_off)

    def closed(self) -> dict[str, str]:
        """Devices on which nothing new may start now, and why."""
        silent = dict.fromkeys(self.ranks.silent(), "a rank does not answer; its process is being ended")
        return {**self._failures.closed(), **silent}

    # --- launch and stop ----------------------------------------------------------------------------------------------

    def _launch(self, event: LaunchOrdered) -> None:
        """Start an attempt, or put it off while a node starts other ranks. No effect when it exists."""
        order = event.order
        if not self._may_act or self.ranks.members(order.key):
            return
        if order.pack and (sharing := self._of_pack(order)):
            self._gangs.mark_launched(order.key)
            sharing.keys[order.key] = order.mib_of(0)
            self._do(instructions.RunAttempt((sharing.name,), order, None))
            return
        code, where = order.candidate.code, list(zip(order.devices, event.nodes, strict=True))
        if not all(suitable(self.ranks.idle(device), code) or self._may_start(node, device) for device, node in where):
            self._put_off_until = self._now + PUT_OFF_SECONDS
            if all(self._failures.may_try(device, self._now) for device in order.devices):
                self._put_off[order.key] = self._now
            return
        self._put_off.pop(order.key, None)
        self._gangs.mark_launched(order.key)
        ranks = [
            next(iter(suitable(self.ranks.idle(device), code)), None) or self._start_instead(device)
            for device in order.devices
        ]
        for number, rank in enumerate(ranks):
            rank.keys, rank.pack = {order.key: order.mib_of(number)}, order.pack
            rank.code, rank.progressed = code, self._now
        host = None
        if len(ranks) > 1:
            ips = [node.ip for node in event.nodes]
            host = "127.0.0.1" if len(set(ips)) == 1 else ips[0]
        self._do(instructions.RunAttempt(tuple(rank.name for rank in ranks), order, host))

    def _of_pack(self, order: Order) -> RankRecord | None:
        """The rank that works for others of the order's pack, on its device."""
        return next(
            (
                rank
                for rank in self.ranks.on(order.devices[0])
                if rank.keys and rank.pack == order.pack and rank.phase is RankPhase.READY
            ),
            None,
        )

    def _stop(self, event: events.StopOrdered) -> None:
        """Ask the ranks of an attempt to stop; they are killed if the gang is broken or they take too long."""
        key, keeps = event.key, event.keep_seconds > 0
        if not self._gangs.mark_stopping(key, self._now + (event.keep_seconds if keeps else STOP_GRACE_SECONDS)):
            return
        if not (members := self.ranks.members(key)):
            self._gangs.forget_without_ranks(key)
        for rank in members:
            if self._gangs.is_broken(key):  # the remaining ranks hang in a collective
                self._end(rank)
            elif rank.phase is not RankPhase.ENDING:
                self._do(instructions.StopAttempt(rank.name, key, keeps))

    # --- starts and spare ranks ---------------------------------------------------------------------------------------

    def _start(self, device: str) -> RankRecord:
        """Start a rank on a device, for no attempt yet."""
        name = f"rank/{device}/{self._new_id()}"
        self._do(instructions.StartRank(name, device))
        return self._add(name, device, RankPhase.STARTING)

    def _start_instead(self, device: str) -> RankRecord:
        """Start a rank, in place of an idle one that has run other user code if the device has no room for both."""
        idle = [rank for rank in self.ranks.idle(device) if rank.code is not None and rank.phase is RankPhase.READY]
        if idle and len(self.ranks.on(device)) >= self._max_per_device:
            self._end(idle[0])
        return self._start(device)

    def _add(self, name: str, device: str, phase: RankPhase) -> RankRecord:
        """List a rank, and ask it how it is. A rank that was found may be doing anything until it answers."""
        now, is_known = self._now, phase is not RankPhase.FOUND
        rank = RankRecord(name, device, phase, since=now, progressed=now, heard=now, is_known=is_known)
        self.ranks[name] = rank
        self._ask(rank)
        return rank

    def _may_start(self, node: Node, device: str) -> bool:
        """Whether another rank may start there now."""
        return self._may_act and self._failures.may_try(device, self._now) and self.ranks.leave_core(node)

    def _keep_warm(self, node: Node) -> None:
        """End superfluous idle ranks, and start spare ones.

        A launch that was put off has priority: no spare rank starts shortly after it.
        """
        for device in node.devices:
            for rank in superfluous(self.ranks.idle(device), self._now):
                self._end(rank)
        if self._now > self._put_off_until:
            for device in self._without_spare(node):
                if self._may_start(node, device):
                    self._start(device)

    def _without_spare(self, node: Node) -> list[str]:
        """Devices of the node on which a spare rank is to start: those that have room for another gang and no clean
        idle rank.

        But where training has half of the node's cores, a start takes one from it. Then one idle rank of the node is
        enough, where the most memory is free: gangs start there if other devices are no better (``round.readiest``).
        Only a device without any rank gets one even so.
        """
        open_to_more = [device for device in node.devices if len(self.ranks.on(device)) < self._max_per_device]
        if self.ranks.leave_half(node, self._now):
            return [device for device in open_to_more if all(rank.code for rank in self.ranks.idle(device))]
        roomiest = self.ranks.roomiest(node)
        if any(self.ranks.idle(device) for device in roomiest):
            return [device for device in roomiest if not self.ranks.on(device)]
        return [device for device in roomiest if device in open_to_more][:1]

    # --- what becomes of ranks ----------------------------------------------------------------------------------------

    def _look(self, nodes: tuple[Node, ...], gone: frozenset[str]) -> None:
        """Forget who is gone; end who is incomplete, silent or too slow to stop; keep spare ranks on free devices."""
        if all(rank.is_known for rank in self.ranks.values()):
            self._gangs.break_incomplete(Counter(key for rank in self.ranks.values() for key in rank.keys))
        self._forget_gone(gone)
        self._end_silent()
        overdue = {*self._gangs.overdue(self._now)}
        for rank in self.ranks.values() if overdue else ():
            if rank.keys and overdue.issuperset(rank.keys) and rank.phase is not RankPhase.ENDING:
                self._end(rank)
        for node in nodes:
            self._keep_warm(node)

    def _end_silent(self) -> None:
        """End the ranks that have not answered for too long, and break their gangs."""
        for rank in self.ranks.values():
            is_starting = rank.phase is RankPhase.STARTING
            seconds = patience.STARTING_RANK_SECONDS if is_starting else patience.RANK_SECONDS
            if rank.asked_at is None or self._now - rank.asked_at < seconds or rank.phase is RankPhase.ENDING:
                continue
            why = silence_reason(seconds, is_starting=is_starting)
            log.warning("the rank %s %s; ending it", rank.name, why)
            if is_starting:
                self._failures.record_failure(rank.device, f"it {why}", self._now)
            self._break(rank, f"a rank on {rank.device} {why}")
            if rank.status is None and self._may_act:
                self._do(instructions.FindProcess(rank.name))
            self._end(rank)

    def _forget_gone(self, gone: frozenset[str]) -> None:
        """Forget the ranks whose processes are known to be gone."""
        for rank in [rank for rank in self.ranks.values() if rank.phase is RankPhase.ENDING]:
            rank.is_gone |= rank.name in gone
            may_trust_ray = rank.node in self._drained or (rank.node in self._alive and rank.status is None)
            if has_ended(rank, may_trust_ray, self._lease_seconds, self._now):
                del self.ranks[rank.name]
                self._do(instructions.ForgetRank(rank.name))
                for key in rank.keys:
                    self._gangs.remove_rank(key, is_last=not self.ranks.members(key))

    def _probe(self) -> None:
        """Ask the ranks how they are; end those again that are to end, as the message may have been lost."""
        for rank in self.ranks.values():
            if rank.phase is RankPhase.ENDING:
                self._end(rank)
            elif rank.answered is None or self._now - rank.answered > PROBE_SECONDS:
                self._ask(rank)

    def _leave(self, devices: tuple[str, ...], why: str) -> None:
        """Break the gangs on devices that have left the cluster, and end their ranks."""
        for rank in [rank for rank in self.ranks.values() if rank.device in devices]:
            self._break(rank, why)
            self._end(rank)

    def _break(self, rank: RankRecord, why: str) -> None:
        """Note that the gangs that the rank works for must be stopped."""
        for key in rank.keys:
            self._gangs.mark_broken(key, why)

    def _end(self, rank: RankRecord) -> None:
        """Kill the process; the rank stays listed until it is gone."""
        if not self._may_act:
            return
        if rank.phase is not RankPhase.ENDING:
            rank.phase, rank.since = RankPhase.ENDING, self._now
        self._do(instructions.KillActor(rank.name))
        if rank.status is not None:
            self._kill_process(rank, rank.status)

    def _kill_process(self, rank: RankRecord, status: RankStatus) -> None:
        """Kill the process itself, on another host by a task there, unless one is under way."""
        node_id = self._alive.get(rank.node, "")
        if rank.is_here:
            self._do(instructions.KillProcess(rank.name, status.process))
        elif node_id and not rank.is_being_killed:
            rank.is_being_killed = True
            self._do(instructions.KillProcessOn(rank.name, status.process, node_id))

    # --- answers ------------------------------------------------------------------------------------------------------

    def _ask(self, rank: RankRecord) -> None:
        """Ask a rank how it is, unless a question is on its way."""
        if rank.asked_at is None:
            rank.asked_at = self._now
            self._do(instructions.AskStatus(rank.name))

    def _hear(self, rank: RankRecord, answer: Answer) -> None:
        match answer:
            case events.StartFailed(_, error):
                self._failures.record_failure(rank.device, cause_in(error), self._now)
                self._break(rank, f"a rank on {rank.device} did not start: {cause_in(error)}")
                del self.ranks[rank.name]
            case events.StatusArrived(_, status, is_here):
                rank.asked_at = None
                self._hear_status(rank, status, is_here)
            case events.AttemptEnded(_, ended):
                if rank.phase is not RankPhase.ENDING:
                    self._attempt_ended(rank, ended)
            case events.HoldEnded():
                self._hold(rank)
            case events.KillAnswered(_, is_gone):
                rank.is_being_killed, rank.is_gone = False, is_gone
            case events.ProcessFound(_, process):
                rank.status, rank.is_here = RankStatus(process, "", 0, 0, False), True
                self._end(rank)
            case events.CallFailed(_, call, error, stderr):
                self._has_no_answer(rank, call)
                if call is not Call.KILL:  # otherwise its host has left: see ``has_ended``
                    self._died(rank, call, error, stderr)
            case events.CallUnavailable(_, call):
                self._has_no_answer(rank, call)
                if not rank.is_done:
                    self._ask_again(rank, call)
            case events.CallRefused(_, call):
                self._has_no_answer(rank, call)
            case _:
                assert_never(answer)

    def _has_no_answer(self, rank: RankRecord, call: Call) -> None:
        """The call is not under way any more, so that it may be repeated."""
        if call is Call.STATUS:
            rank.asked_at = None
        if call is Call.KILL:
            rank.is_being_killed = False

    def _ask_again(self, rank: RankRecord, call: Call) -> None:
        if call is Call.RUN:
            for key in rank.keys:
                self._do(instructions.JoinAttempt(rank.name, key))
        else:
            self._ask(rank)

    def _died(self, rank: RankRecord, call: Call, error: str, stderr: str) -> None:
        why = cause_of_death(error, rank.status.process.pid if rank.status else None, stderr)
        if rank.phase is RankPhase.STARTING:
            self._failures.record_failure(rank.device, why, self._now)
        if rank.phase is not RankPhase.ENDING:  # Ray calls one that we have killed dead before it is
            self._break(rank, f"a rank on {rank.device} died: {why}")
            rank.is_known = True  # whatever it ran, it runs no more
        self._end(rank)
        if call is not Call.RUN and not rank.dead:  # the error of a run may be caused by the rank that it waits for
            rank.dead, rank.since = True, self._now

    def _hear_status(self, rank: RankRecord, status: RankStatus, is_here: bool) -> None:
        first = rank.answered is None
        rank.hear(status, is_here=is_here, now=self._now)
        if rank.phase is RankPhase.FOUND:
            self._take_over(rank, status)
        elif rank.phase is RankPhase.STARTING:
            rank.phase = RankPhase.READY
            self._failures.record_start(rank.device)
        if first and rank.phase is not RankPhase.ENDING:
            self._hold(rank)

    def _take_over(self, rank: RankRecord, status: RankStatus) -> None:
        """Take over a rank of an earlier controller. One of another version may finish its attempt."""
        rank.phase, rank.is_known, rank.code = RankPhase.READY, True, status.code
        rank.keys, rank.pack = dict.fromkeys(status.keys, 0), status.pack
        for key in status.keys:
            self._gangs.mark_found(key, status.world)
            self._do(instructions.JoinAttempt(rank.name, key))
        if status.keys:
            return
        if not status.reusable or status.version != self._version:
            self._end(rank)

    def _attempt_ended(self, rank: RankRecord, ended: Ended) -> None:
        """End the rank, or make it idle again if its process is clean and of our version."""
        key = ended.key or next(iter(rank.keys), "")
        if key not in rank.keys:  # this answer came before
            return
        went_well = ended.outcome in (Outcome.DONE, Outcome.STOPPED)
        if ended.outcome is not None:
            self._gangs.mark_recorded(key)
        if not went_well and not ended.reusable:
            self._break(rank, f"a rank on {rank.device} ended: {first_line(ended.outcome or ended.detail)}")
        if went_well and ended.detail:
            log.info("the rank %s is replaced: %s", rank.name, ended.detail)
        is_old = rank.status is not None and rank.status.version != self._version
        if not ended.reusable or (is_old and len(rank.keys) == 1):
            self._end(rank)
            return
        rank.last_mib, rank.since = rank.keys.pop(key), self._now
        self._gangs.remove_rank(key, is_last=not self.ranks.members(key))

    def _hold(self, rank: RankRecord) -> None:
        """Keep a call open, whose error says at once that the rank has died."""
        if not rank.is_done:
            self._do(instructions.HoldCall(rank.name))

    def _do(self, instruction: Instruction) -> None:
        self._instructions.append(instruction)
