"""The cluster of a simulation: ranks, messages, checkpoints, and what goes wrong with them."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from estimators.model import MIB
from placement.model import Device
from scamp_service.control.decide.finish import JOIN_SECONDS, RETURN_SECONDS
from scamp_service.control.executor import Order
from scamp_service.lifecycle import Outcome
from scamp_service.model import Metric, Report
from scamp_service.patience import RANK_SECONDS, STARTING_RANK_SECONDS
from scamp_service.settings import Settings
from scamp_service.store.store import Store
from tests.simulation.candidates import grown_mib, objective, step_seconds, tensors_mib, truth_mib
from tests.simulation.faults import Clock, Faults
from workloads.training.checkpoints.name import CheckpointName
from workloads.training.checkpoints.retention import outdated

KEEP_SECONDS: float = Settings.model_fields["keep_seconds"].default


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
    keeps: bool = False  # it is to write a checkpoint and end
    has_answer: bool = False  # its outcome has been stored, or refused
    recorded: int = 0  # step of the newest checkpoint that the database has acknowledged, or that was resumed from


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
        self.anew: set[int] = set()  # trials that never resume
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
        self.leaving: set[str] = set()  # devices that have announced that they leave
        if self._happens(faults.shrink):
            last, seconds = self.devices[-1], rng.uniform(60.0, 90.0)
            if seconds > 75.0:
                self.after(seconds - 30.0, lambda: self.leaving.add(last.id))
            self.after(seconds, lambda: self._leave(last))
        self.term = 0
        self.outage_until = 0.0
        self.jumped, self.has_jumped = 0.0, False

    def wall_clock(self) -> float:
        return self.clock.now + self.jumped

    @property
    def has_database(self) -> bool:
        return self.clock.now >= self.outage_until

    def disturb(self, num_cycles: float) -> None:
        """Events that may happen to all in any cycle, once for as many as have passed."""
        if self.rng.random() < 1.0 - (1.0 - self.faults.lose_database) ** num_cycles:
            self.outage_until = self.clock.now + self.rng.uniform(1.0, 60.0)
        if self.rng.random() < 1.0 - (1.0 - self.faults.jump_clock) ** num_cycles:
            self.jumped += self.rng.choice([-3600.0, -30.0, 30.0, 3600.0])
            self.has_jumped = True

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
            for name in gang.order.devices if gang.started else ():
                used[name] = used.get(name, 0) + gang.order.mib_per_rank
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

    def stop(self, key: str, *, keep: bool = False) -> None:
        for _ in range(self._copies()):
            self.after(self.rng.uniform(0.0, 3.0), lambda: self._keep(key) if keep else self._remove(key))

    def _keep(self, key: str) -> None:
        """Let a gang write a checkpoint after its next step; one that has not ended after a while is killed."""
        gang = self.gangs_by_key.get(key)
        if gang is not None and gang.broken:
            self._remove(key)
        elif gang is not None and not gang.keeps:
            gang.keeps = True
            self.after(KEEP_SECONDS, lambda: self._remove(key))  # of an attempt there is only one gang

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
        if not self.store.reports.start(order.trial_id, order.attempt, order.token, now=self.clock.now):
            return
        if any(a.key == order.key and a.outcome for a in self.store.attempts.of_trial(order.trial_id)):
            return
        self.disk.setdefault(order.trial_id, set())
        kept = self.disk.get(order.resume.trial_id, set()) if order.resume else set()
        can_resume = order.resume is None or order.resume in kept
        self.insist(can_resume, f"{order.key}: no {order.resume} in {kept}")
        donated = self.disk.get(order.donor.checkpoint.trial_id, set()) if order.donor else set()
        can_begin = order.donor is None or order.donor.checkpoint in donated
        self.insist(can_begin, f"{order.key}: no {order.donor} in {donated}")
        resume_step = order.resume.step if order.resume else -1
        before = [self.recorded.get((order.trial_id, attempt), -1) for attempt in range(order.attempt)]
        if order.trial_id in self.anew:
            before = [-1]
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
        self.after(STARTING_RANK_SECONDS, lambda: self._break(gang, "a rank has not answered for 120 s"))

    def _break(self, gang: SimulatedGang, why: str) -> None:
        gang.broken = why

    def _devices_of(self, order: Order) -> list[Device]:
        return [device for device in self.devices if device.id in order.devices]

    def _bring_back(self, node: str) -> None:
        self.lost_nodes.pop(node, None)

    def _remove(self, key: str) -> None:
        gang = self.gangs_by_key.pop(key, None)
        if gang:
            gang.alive = False

    def _step(self, gang: SimulatedGang) -> None:
        """Let the gang make its next step, or meet the first of these fates. A seed fixes the order of the draws."""
        if not gang.alive or gang.broken or gang.frozen:
            return
        if not self.has_database:
            self.after(1.0, lambda: self._step(gang))
        elif not (self._loses_ranks(gang) or self._runs_out_of_memory(gang) or self._meets_error(gang)):
            self._train(gang)

    def _loses_ranks(self, gang: SimulatedGang) -> bool:
        """Whether the gang loses its node or a rank, or hangs."""
        if self.rng.random() < self.faults.lose_node:
            self._lose_node(self._devices_of(gang.order)[0].node)
            return True
        if self.rng.random() < self.faults.kill_rank:
            gang.broken = "a rank was killed"
            return True
        gang.progressed = self.clock.now
        if self.rng.random() < self.faults.stall:
            return True
        if self.rng.random() < self.faults.freeze_rank:
            gang.frozen = True
            self.after(RANK_SECONDS, lambda: self._break(gang, "a rank has not answered for 30 s"))
            return True
        return False

    def _runs_out_of_memory(self, gang: SimulatedGang) -> bool:
        """Whether the step needs more memory than the gang has reserved."""
        order = gang.order
        grown = grown_mib(order.candidate.params, order.plan.world_size)
        needed_mib = truth_mib(order.candidate.params) + grown
        if order.trial_id == 1:
            needed_mib += int(order.candidate.params.get("accident", 0))
        if needed_mib > order.mib_per_rank and gang.step >= order.steps // 2:
            # A step that grows asks for one tensor after the other: it fails with the first that it does not get.
            measured = (min(needed_mib, order.mib_per_rank + 1) if grown else needed_mib) * MIB
            self.send(
                gang,
                lambda: self.store.reports.add(
                    Report(order.trial_id, order.attempt, order.token, measured_bytes=measured),
                    now=self.clock.now,
                ),
            )
            self.finish(gang, Outcome.OUT_OF_MEMORY, "tried to allocate")
            return True
        return False

    def _meets_error(self, gang: SimulatedGang) -> bool:
        """Whether the model refuses to train on so many ranks, or fails by chance.

        The disk may fill up and the sink may end meanwhile.
        """
        order = gang.order
        if self._happens(self.faults.fill_disk):
            self.disk_full_until = self.clock.now + self.rng.uniform(5.0, 120.0)
        if self._happens(self.faults.lose_sink):
            gang.sink_back_at = self.clock.now + self.rng.uniform(1.0, 10.0)
        params = order.candidate.params
        grown = grown_mib(params, order.plan.world_size)
        breaks = (
            params.get("breaks") and not params["spike"] and not grown
        )  # a plan after an out-of-memory error may be a wider one
        if breaks and order.plan.world_size > self.least_ranks.get(order.trial_id, 64):
            self.finish(gang, Outcome.ERROR, "this model does not train on more ranks")
            return True
        is_own = order.resume is not None and order.resume.trial_id == order.trial_id
        if is_own and self._happens(self.faults.resume_otherwise):
            self.finish(gang, Outcome.RESUMES_DIFFERENTLY, "the loss of step 3 is 0.2, and was 0.1")
            return True
        if self._happens(self.faults.raise_error):
            self.finish(gang, Outcome.ERROR, "ConnectionError: the data cannot be read")
            return True
        return False

    def _train(self, gang: SimulatedGang) -> None:
        """Make the steps up to the next report, or one if it is to end, save and report, or fail on a full disk."""
        order = gang.order
        last, every = order.until or order.steps, order.report_every
        stops = gang.keeps and gang.step + 1 < last
        gang.step = gang.step + 1 if stops else min(last, (gang.step // every + 1) * every)
        if self.clock.now < self.disk_full_until:
            self.num_faults += 1
            self.finish(gang, Outcome.FAULT, "No space left on device: /checkpoints")
            return
        if last:
            self._save(gang)
        if gang.step == last or gang.step % every == 0:
            gang.seq += 1
            score = objective(order.trial_id, order.attempt, gang.step)
            row = Metric(order.trial_id, order.attempt, gang.seq, gang.step, {"score": score}, self.clock.now)
            self.report(gang, gang.step, [row])
        else:
            self.report(gang, gang.step, [])
        if stops:
            self.finish(gang, Outcome.STOPPED, "")
        elif gang.step >= last:
            self.finish(gang, Outcome.DONE, "")
        else:
            self.after(1.0, lambda: self._step(gang))

    def report(self, gang: SimulatedGang, step: int, metrics: Sequence[Metric]) -> None:
        """Report a checkpoint and what was evaluated there."""
        order = gang.order

        def deliver() -> bool:
            accepted = self.store.reports.add(
                Report(
                    order.trial_id,
                    order.attempt,
                    order.token,
                    metrics=metrics,
                    objectives=order.objectives,
                    measured_bytes=tensors_mib(order.candidate.params) * MIB,
                    checkpoint_step=step or -1,
                    step_seconds=step_seconds(order),
                    timed_steps=step,
                ),
                now=self.clock.now,
            )
            if accepted:
                gang.recorded = max(gang.recorded, step or -1)
                self.recorded[(order.trial_id, order.attempt)] = gang.recorded
                self.acknowledged |= {(row.trial_id, row.attempt, row.seq): row.values["score"] for row in metrics}
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
            accepted = self.store.reports.end(
                order.trial_id, order.attempt, order.token, outcome, detail, now=self.clock.now
            )
            if accepted and outcome is Outcome.RESUMES_DIFFERENTLY and not gang.has_answer:
                stored = self.store.attempts.of_trial(order.trial_id)[order.attempt - 1].outcome
                if stored is outcome:  # not if the gang was given up before
                    self._forget(order.trial_id)
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

    def _forget(self, trial_id: int) -> None:
        """Expect nothing any more that the trial has reported, and no attempt that resumes."""
        self.anew.add(trial_id)
        self.acknowledged = {key: value for key, value in self.acknowledged.items() if key[0] != trial_id}
        self.recorded = {key: step for key, step in self.recorded.items() if key[0] != trial_id}

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
        kept -= set(outdated(kept, newest, {CheckpointName(trial_id, gang.recorded), *gang.order.keep}))

    def _leave(self, device: Device) -> None:
        for key, gang in list(self.gangs_by_key.items()):
            if device.id in gang.order.devices:
                self._remove(key)
        self.absent.add(device.id)
        self.leaving.discard(device.id)
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
        self.after(self.rng.uniform(5.0, 60.0), lambda: self._bring_back(node))
