"""Simulates one optimizer step of a pipeline: when each rank computes, communicates and waits, and what it holds.

Event-driven and deterministic. Each rank has one stream for computation and one for messages, which overlap. A rank
runs its passes in the order of the schedule, each as soon as its inputs have arrived. A message occupies the streams of
both ranks; messages that wait for a stream are sent in the order in which they became ready. Seconds may stand for any
other unit of time, if all costs have it.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from placement.planning.passes import BACKWARD, BACKWARD_INPUT, FORWARD, Action, Schedule, Step


@dataclass(frozen=True, slots=True)
class StageCost:
    """The cost of one micro-batch on one holder of a stage.

    The backward pass takes ``input_seconds`` + ``weight_seconds``. ``kept_bytes`` are the activations that a forward
    pass keeps for the backward pass. ``output_bytes`` go to each holder of the next stage; their gradients come back.
    ``state_bytes`` are held during the whole step, at the end of which the update takes ``update_seconds``.
    """

    forward_seconds: float
    input_seconds: float
    weight_seconds: float
    kept_bytes: int = 0
    output_bytes: int = 0
    state_bytes: int = 0
    update_seconds: float = 0.0

    def seconds(self, action: Action) -> float:
        """Seconds of a pass through this stage."""
        if action.kind == FORWARD:
            return self.forward_seconds
        if action.kind == BACKWARD:
            return self.input_seconds + self.weight_seconds
        return self.input_seconds if action.kind == BACKWARD_INPUT else self.weight_seconds


MessageSeconds = Callable[[int, int, int], float]
"""(rank that sends, rank that receives, bytes) → seconds."""


@dataclass(frozen=True, slots=True)
class Interval:
    """What a stream of ``rank`` does for a while. ``action`` is the pass, or the one whose result is sent to
    ``receiver``; None: the update."""

    rank: int
    start_seconds: float
    end_seconds: float
    action: Action | None
    receiver: int | None = None


@dataclass(frozen=True)
class Simulation:
    """One simulated step of ``num_ranks``.

    ``computing``, ``messages`` and ``late`` are in the order of time; in ``late`` a rank waits for a result that is
    computed but has not arrived, before it runs ``action``. ``memory`` has for each rank the bytes that it holds from a
    time on.
    """

    num_ranks: int
    computing: tuple[Interval, ...]
    messages: tuple[Interval, ...]
    late: tuple[Interval, ...]
    memory: tuple[tuple[tuple[float, int], ...], ...]

    @cached_property
    def makespan_seconds(self) -> float:
        """Seconds until the last rank has ended."""
        return max(interval.end_seconds for interval in self.computing)

    @property
    def bubble_share(self) -> float:
        """Share (0 to 1) of the time of all ranks in which one is idle, because what it needs is not computed yet."""
        return max(0.0, 1 - self._share(self.computing) - self.communication_share)

    @property
    def communication_share(self) -> float:
        """Share (0 to 1) of the time of all ranks in which one is idle, because what it needs is still on its way."""
        return self._share(self.late)

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        """Most bytes that each rank holds at once."""
        return tuple(max(num_bytes for _, num_bytes in held) for held in self.memory)

    def _share(self, intervals: Sequence[Interval]) -> float:
        whole = self.makespan_seconds * self.num_ranks
        return sum(one.end_seconds - one.start_seconds for one in intervals) / whole if whole else 0.0


def simulate(
    schedule: Schedule, stages: Sequence[StageCost], message_seconds: MessageSeconds = lambda *_: 0.0
) -> Simulation:
    """Simulate one step. Raises ``ValueError`` unless there is a cost for each stage of the schedule."""
    if len(stages) != schedule.num_stages:
        raise ValueError(f"{schedule.name} has {schedule.num_stages} stages, got costs of {len(stages)}")
    return _Run(schedule, stages, message_seconds).run()


@dataclass(slots=True)
class _Message:
    step: Step
    receiver: int
    num_bytes: int
    ready_seconds: float


class _Run:
    """The state of one simulation. Events are ends of passes and messages, in the order of time and then of making."""

    def __init__(self, schedule: Schedule, stages: Sequence[StageCost], message_seconds: MessageSeconds) -> None:
        self._schedule, self._stages, self._message_seconds = schedule, stages, message_seconds
        ranks = range(schedule.num_ranks)
        self._place = [0 for _ in ranks]
        self._computes, self._talks = [False for _ in ranks], [False for _ in ranks]
        self._free = [0.0 for _ in ranks]
        self._missing = {step: len(needed) for step, needed in schedule.needs.items()}
        self._wanted_by: dict[Step, list[Step]] = defaultdict(list)
        for step, needed in schedule.needs.items():
            for one in needed:
                self._wanted_by[one].append(step)
        self._computed_at: dict[Step, float] = {}
        self._pending: list[_Message] = []
        self._events: list[tuple[float, int, Step | _Message]] = []
        self._num_events = 0
        self._computing: list[Interval] = []
        self._messages: list[Interval] = []
        self._late: list[Interval] = []
        held = [stage.state_bytes for stage in stages]
        self._memory: list[list[tuple[float, int]]] = [
            [(0.0, sum(held[stage] for stage, holders in enumerate(schedule.holders) if rank in holders))]
            for rank in ranks
        ]
        self._received: dict[tuple[int, int, int], int] = defaultdict(int)  # bytes by rank, stage and micro-batch

    def run(self) -> Simulation:
        for rank in range(self._schedule.num_ranks):
            self._compute(rank, 0.0)
        while self._events:
            now, _, what = heapq.heappop(self._events)
            if isinstance(what, _Message):
                self._end_message(what, now)
            else:
                self._end_pass(what, now)
            # What ends at the same time counts first: a stream goes to the message that was ready first.
            if not self._events or self._events[0][0] > now:
                self._send(now)
        self._update()
        memory = tuple(tuple(_summed(changes)) for changes in self._memory)
        computing, messages, late = (
            tuple(sorted(stream, key=_by_time)) for stream in (self._computing, self._messages, self._late)
        )
        return Simulation(self._schedule.num_ranks, computing, messages, late, memory)

    def _compute(self, rank: int, now: float) -> None:
        """Start the rank's next pass, if the rank is idle and the inputs are there."""
        order = self._schedule.orders[rank]
        if self._computes[rank] or self._place[rank] == len(order):
            return
        step = rank, order[self._place[rank]]
        if self._missing[step]:
            return
        self._computes[rank] = True
        self._place[rank] += 1
        self._wait_until(step, now)
        action = step[1]
        cost = self._stages[action.stage]
        end = now + cost.seconds(action)
        if action.kind == FORWARD:
            self._memory[rank].append((now, cost.kept_bytes))
        self._computing.append(Interval(rank, now, end, action))
        self._schedule_event(end, step)

    def _wait_until(self, step: Step, now: float) -> None:
        rank, action = step
        computed = max((self._computed_at[one] for one in self._schedule.needs[step]), default=0.0)
        if (ready := max(self._free[rank], computed)) < now:
            self._late.append(Interval(rank, ready, now, action))

    def _end_pass(self, step: Step, now: float) -> None:
        rank, action = step
        self._computes[rank], self._free[rank], self._computed_at[step] = False, now, now
        kept = self._stages[action.stage].kept_bytes
        place = rank, action.stage, action.micro_batch
        if action.frees or (action.kind == FORWARD and not self._schedule.keeps(action)):
            self._memory[rank].append((now, -kept - self._received.pop(place, 0)))
        wanted = self._wanted_by[step]
        for receiver in dict.fromkeys(other for other, _ in wanted):
            if receiver == rank:
                self._arrive(step, rank)
            else:
                self._pending.append(_Message(step, receiver, self._message_bytes(action), now))
        self._compute(rank, now)

    def _message_bytes(self, action: Action) -> int:
        """A forward pass sends its output, a backward pass the gradient of its input; sharers send their parts."""
        stage = action.stage if action.kind == FORWARD else action.stage - 1
        return self._stages[stage].output_bytes // len(self._schedule.holders[action.stage])

    def _send(self, now: float) -> None:
        """Start all messages whose streams are free."""
        left = []
        for message in self._pending:
            sender, receiver = message.step[0], message.receiver
            if self._talks[sender] or self._talks[receiver]:
                left.append(message)
                continue
            self._talks[sender] = self._talks[receiver] = True
            end = now + self._message_seconds(sender, receiver, message.num_bytes)
            if message.step[1].kind == FORWARD:
                for _, action in (one for one in self._wanted_by[message.step] if one[0] == receiver):
                    self._received[receiver, action.stage, action.micro_batch] += message.num_bytes
                    self._memory[receiver].append((now, message.num_bytes))
            self._messages.append(Interval(sender, now, end, message.step[1], receiver))
            self._schedule_event(end, message)
        self._pending = left

    def _end_message(self, message: _Message, now: float) -> None:
        self._talks[message.step[0]] = self._talks[message.receiver] = False
        self._arrive(message.step, message.receiver)
        self._compute(message.receiver, now)

    def _arrive(self, step: Step, receiver: int) -> None:
        for wanting in self._wanted_by[step]:
            if wanting[0] == receiver:
                self._missing[wanting] -= 1

    def _update(self) -> None:
        """Let each rank update its parameters."""
        for rank, free in enumerate(self._free):
            stages = {action.stage for action in self._schedule.orders[rank]}
            if seconds := sum(self._stages[stage].update_seconds for stage in sorted(stages)):
                self._computing.append(Interval(rank, free, free + seconds, None))

    def _schedule_event(self, end: float, what: Step | _Message) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (end, self._num_events, what))


def _by_time(interval: Interval) -> tuple[float, float, int]:
    return interval.start_seconds, interval.end_seconds, interval.rank


def _summed(changes: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """(time, bytes held from then on), from changes in the order of time."""
    ordered = sorted(changes, key=lambda change: change[0])
    held = accumulate(num_bytes for _, num_bytes in ordered)
    return [(now, num_bytes) for (now, _), num_bytes in zip(ordered, held, strict=True)]
