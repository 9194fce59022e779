"""Simulates one optimizer step of a pipeline: when each rank computes, communicates and waits, and what it holds.

Event-driven and deterministic. Each rank has one stream for computation and one for messages, which overlap. A rank
runs its passes in the order of the schedule, each as soon as its inputs have arrived. A message occupies the streams of
both ranks; messages that wait for a stream are sent in the order in which they became ready. Seconds may stand for any
other unit of time, if all costs have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from heapq import heappop, heappush

from estimators.pipelining.passes import BACKWARD, BACKWARD_INPUT, FORWARD, Action, Pass, PipelineSchedule


@dataclass(frozen=True, slots=True)
class StageCost:
    """The cost of one micro-batch on one holder of a stage.

    The backward pass takes ``input_seconds`` + ``weight_seconds``. ``kept_bytes`` are the activations that a forward
    pass keeps for the backward pass. ``output_bytes`` go to each holder of the next stage; their gradients come back.
    ``state_bytes`` are held during the whole step; at its end the update takes ``update_seconds``.
    """

    forward_seconds: float
    input_seconds: float
    weight_seconds: float
    kept_bytes: int = 0
    output_bytes: int = 0
    state_bytes: int = 0
    update_seconds: float = 0.0

    def seconds(self, kind: Pass) -> float:
        """Seconds of a pass through this stage."""
        if kind == FORWARD:
            return self.forward_seconds
        if kind == BACKWARD:
            return self.input_seconds + self.weight_seconds
        return self.input_seconds if kind == BACKWARD_INPUT else self.weight_seconds


MessageSeconds = Callable[[int, int, int], float]
"""(rank that sends, rank that receives, bytes) → seconds."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The work of a stream of ``rank`` for a while. ``action`` is the pass, or the one whose result is sent to
    ``receiver``; None: the update."""

    rank: int
    start_seconds: float
    end_seconds: float
    action: Action | None
    receiver: int | None = None


@dataclass(frozen=True)
class Simulation:
    """One simulated step of a schedule.

    ``started`` and ``ended`` have the seconds of each action, as its graph numbers them, and ``updated`` those at which
    each rank ends its update. ``sent`` are messages in the order in which they were sent, as (sender, start, end,
    action, receiver). In ``waited``, which has (rank, start, end, action), a rank waits for a result that is computed
    but has not arrived. ``memory`` has for each rank the bytes that it holds from a time on.
    """

    schedule: PipelineSchedule
    started: Sequence[float]
    ended: Sequence[float]
    updated: Sequence[float]
    sent: Sequence[tuple[int, float, float, int, int]]
    waited: Sequence[tuple[int, float, float, int]]
    memory: Sequence[Sequence[tuple[float, int]]]

    @property
    def num_ranks(self) -> int:
        """Ranks in the pipeline."""
        return self.schedule.num_ranks

    @cached_property
    def makespan_seconds(self) -> float:
        """Seconds until the last rank has ended."""
        return max(max(self.updated), max(self.ended))

    @cached_property
    def computing(self) -> tuple[Interval, ...]:
        """The passes that each rank computes, in the order of time."""
        graph = self.schedule.graph
        intervals = list(map(Interval, graph.ranks, self.started, self.ended, graph.actions))
        intervals += [Interval(rank, start, end, None) for rank, start, end in self._updates() if end > start]
        return tuple(sorted(intervals, key=_by_time))

    @cached_property
    def messages(self) -> tuple[Interval, ...]:
        """The messages that each rank sends, in the order of time."""
        actions = self.schedule.graph.actions
        intervals = [Interval(rank, start, end, actions[sent], to) for rank, start, end, sent, to in self.sent]
        return tuple(sorted(intervals, key=_by_time))

    @cached_property
    def late(self) -> tuple[Interval, ...]:
        """When each rank waits for a result that is on its way, before it runs the action; in the order of time."""
        actions = self.schedule.graph.actions
        intervals = [Interval(rank, start, end, actions[before]) for rank, start, end, before in self.waited]
        return tuple(sorted(intervals, key=_by_time))

    @property
    def bubble_share(self) -> float:
        """Share (0 to 1) of the time of all ranks in which one is idle, because what it needs is not computed yet."""
        busy = sum(self.ended) - sum(self.started) + sum(end - start for _, start, end in self._updates())
        return max(0.0, 1 - self._share(busy) - self.communication_share)

    @property
    def communication_share(self) -> float:
        """Share (0 to 1) of the time of all ranks in which one is idle, because what it needs is still on its way."""
        return self._share(sum(end - start for _, start, end, _ in self.waited))

    @cached_property
    def peak_bytes(self) -> tuple[int, ...]:
        """Most bytes that each rank holds at once."""
        return tuple(max(num_bytes for _, num_bytes in held) for held in self.memory)

    def _updates(self) -> Iterator[tuple[int, float, float]]:
        for rank, (last, end) in enumerate(zip(self.schedule.graph.bounds[1:], self.updated, strict=True)):
            yield rank, self.ended[last - 1], end

    def _share(self, seconds: float) -> float:
        rank_seconds = self.makespan_seconds * self.num_ranks
        return seconds / rank_seconds if rank_seconds else 0.0


def simulate_step(
    schedule: PipelineSchedule, stages: Sequence[StageCost], message_seconds: MessageSeconds = lambda *_: 0.0
) -> Simulation:
    """Simulate one step. Raises ``ValueError`` unless there is a cost for each stage of the schedule."""
    if len(stages) != schedule.num_stages:
        raise ValueError(f"{schedule.name} has {schedule.num_stages} stages, got costs of {len(stages)}")
    return _Run(schedule, stages, message_seconds).run()


class _Run:
    """The state of one simulation. Events are ends of passes and messages, in the order of time and then of making.

    Everything about an action is looked up by its number in the graph: simulations of many ranks have ten thousands.
    """

    def __init__(
        self, schedule: PipelineSchedule, stages: Sequence[StageCost], message_seconds: MessageSeconds
    ) -> None:
        self._schedule, self._stages, self._graph = schedule, stages, schedule.graph
        self._message_seconds = cache(message_seconds)
        actions, num = self._graph.actions, len(self._graph.actions)
        lasting = [{kind: stage.seconds(kind) for kind in Pass} for stage in stages]
        self._lasting = [lasting[stage][kind] for stage, _, kind in actions]
        # Bytes of activations that each pass begins to hold, and those that it gives back; None for neither.
        kept_bytes = [stage.kept_bytes for stage in stages]
        self._taken = [kept_bytes[stage] if kind == FORWARD else None for stage, _, kind in actions]
        self._given = [None if kind in (FORWARD, BACKWARD_INPUT) else -kept_bytes[stage] for stage, _, kind in actions]
        self._num_missing = [len(needed) for needed in self._graph.needs]
        self._started, self._ended = [0.0] * num, [0.0] * num
        self._at, self._last = list(self._graph.bounds[:-1]), self._graph.bounds[1:]
        ranks = range(schedule.num_ranks)
        self._computes, self._talks = [False for _ in ranks], [False for _ in ranks]
        self._pending: list[tuple[int, int]] = []  # (action whose result is sent, receiver)
        self._events: list[tuple[float, int, int]] = []  # (end, number of the event, action or −1 − message)
        self._num_events = 0
        self._sent: list[tuple[int, float, float, int, int]] = []
        self._waited: list[tuple[int, float, float, int]] = []
        self._memory = [[(0.0, sum(stages[stage].state_bytes for stage in self._stages_of(rank)))] for rank in ranks]
        self._received = [0] * (1 + max(self._graph.held))  # bytes, by what they are held for
        sizes = [
            (self._message_bytes(stage, ahead=False), self._message_bytes(stage, ahead=True))
            for stage in range(len(stages))
        ]
        self._num_bytes = [sizes[stage][kind == FORWARD] for stage, _, kind in actions]

    def run(self) -> Simulation:
        events, end_pass, end_message = self._events, self._end_pass, self._end_message
        for rank in range(self._schedule.num_ranks):
            self._compute(rank, 0.0)
        while events:
            now, _, event = heappop(events)
            if event < 0:
                end_message(self._sent[-1 - event], now)
            else:
                end_pass(event, now)
            # What ends at the same time counts first: a stream goes to the message that was ready first.
            if self._pending and (not events or events[0][0] > now):
                self._send(now)
        return Simulation(
            self._schedule, self._started, self._ended, self._updated(), self._sent, self._waited, self._memory
        )

    def _compute(self, rank: int, now: float) -> None:
        """Start the rank's next pass, if the rank is idle and the inputs are there."""
        number = self._at[rank]
        if self._computes[rank] or number == self._last[rank] or self._num_missing[number]:
            return
        self._computes[rank] = True
        self._at[rank] = number + 1
        self._started[number] = now
        graph, ended = self._graph, self._ended
        ready = ended[number - 1] if number > graph.bounds[rank] else 0.0
        for needed in graph.needs[number]:
            if ended[needed] > ready:
                ready = ended[needed]
        if ready < now:
            self._waited.append((rank, ready, now, number))
        if (more_bytes := self._taken[number]) is not None:
            self._hold(rank, now, more_bytes)
        self._num_events += 1
        heappush(self._events, (now + self._lasting[number], self._num_events, number))

    def _end_pass(self, number: int, now: float) -> None:
        graph, rank = self._graph, self._graph.ranks[number]
        self._computes[rank], self._ended[number] = False, now
        if (freed_bytes := self._given[number]) is not None:
            held = graph.held[number]
            self._hold(rank, now, freed_bytes - self._received[held])
            self._received[held] = 0
        for wanting in graph.wanted_here[number]:
            self._num_missing[wanting] -= 1
        for receiver, _ in graph.wanted_by[number]:
            self._pending.append((number, receiver))
        self._compute(rank, now)

    def _hold(self, rank: int, now: float, more_bytes: int) -> None:
        memory = self._memory[rank]
        memory.append((now, memory[-1][1] + more_bytes))

    def _message_bytes(self, stage: int, *, ahead: bool) -> int:
        """A forward pass sends its output, a backward pass the gradient of its input; sharers send their parts."""
        sent = stage if ahead else max(0, stage - 1)
        return self._stages[sent].output_bytes // len(self._schedule.holders[stage])

    def _send(self, now: float) -> None:
        """Start all messages whose streams are free."""
        graph, talks, left = self._graph, self._talks, []
        for message in self._pending:
            number, receiver = message
            sender = graph.ranks[number]
            if talks[sender] or talks[receiver]:
                left.append(message)
                continue
            talks[sender] = talks[receiver] = True
            num_bytes = self._num_bytes[number]
            end = now + self._message_seconds(sender, receiver, num_bytes)
            if graph.actions[number].kind == FORWARD:
                for wanting in self._wanting(number, receiver):
                    self._received[graph.held[wanting]] += num_bytes
                    self._hold(receiver, now, num_bytes)
            self._sent.append((sender, now, end, number, receiver))
            self._num_events += 1
            heappush(self._events, (end, self._num_events, -len(self._sent)))
        self._pending = left

    def _end_message(self, message: tuple[int, float, float, int, int], now: float) -> None:
        sender, _, _, number, receiver = message
        self._talks[sender] = self._talks[receiver] = False
        for wanting in self._wanting(number, receiver):
            self._num_missing[wanting] -= 1
        self._compute(receiver, now)

    def _wanting(self, number: int, receiver: int) -> Sequence[int]:
        """The actions of the receiver that need the result of this action."""
        next_actions = self._graph.wanted_by[number]
        return next_actions[0][1] if len(next_actions) == 1 else dict(next_actions)[receiver]

    def _updated(self) -> list[float]:
        """When each rank has updated its parameters."""
        ends = [self._ended[last - 1] for last in self._last]
        return [
            end + sum(self._stages[stage].update_seconds for stage in self._stages_of(rank))
            for rank, end in enumerate(ends)
        ]

    def _stages_of(self, rank: int) -> list[int]:
        return [stage for stage, holders in enumerate(self._schedule.holders) if rank in holders]


def _by_time(interval: Interval) -> tuple[float, float, int]:
    return interval.start_seconds, interval.end_seconds, interval.rank
