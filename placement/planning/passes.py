"""The schedule of a pipeline: which rank runs which passes in which order, and the check that this order can run.

A schedule that exists is valid: every pass runs once, in dependency order, without deadlock. The schedules that have
names are in ``schedules``; how long one takes is in ``simulator``.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class Pass(StrEnum):
    """What an action computes. A backward pass is one action, or two: gradients of inputs first, then of weights."""

    FORWARD = "forward"
    BACKWARD = "backward"
    BACKWARD_INPUT = "backward of the input"
    BACKWARD_WEIGHT = "backward of the weights"

    __hash__ = str.__hash__  # an enum's own is slow


FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT = Pass


class Action(NamedTuple):
    """One pass of one micro-batch through one stage. A tuple, because simulations look up many of them.

    ``turn`` numbers the forward passes of a model that runs several before each backward pass (recycling). Only the
    last one keeps activations.
    """

    stage: int
    micro_batch: int
    kind: Pass = FORWARD
    turn: int = 0

    @property
    def frees(self) -> bool:
        """Whether the activations of the forward pass are no longer needed afterwards."""
        return self.kind in (BACKWARD, BACKWARD_WEIGHT)

    def __str__(self) -> str:
        turn = f" (turn {self.turn})" if self.turn else ""
        return f"{self.kind} of micro-batch {self.micro_batch} on stage {self.stage}{turn}"


Step = tuple[int, Action]
"""(rank, the action that it runs)."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The actions of each rank in their order. ``holders`` are the ranks of each stage: one, or several that share it.

    Stages are numbered in the direction of the forward pass. Each holder of a shared stage runs all of its passes on
    its part of the layers; the next stage needs the results of all parts. ``num_forwards`` forward passes precede each
    backward pass. Raises ``ValueError``, which says what is wrong and where, for orders that cannot run.
    """

    name: str
    orders: tuple[tuple[Action, ...], ...]
    holders: tuple[tuple[int, ...], ...]
    num_micro_batches: int
    num_forwards: int = 1
    needs: Mapping[Step, tuple[Step, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_actions(self)
        _check_shared_stages(self)
        object.__setattr__(self, "needs", _needs(self))
        starts(self)  # which finds a deadlock

    @property
    def num_ranks(self) -> int:
        """Ranks in the pipeline."""
        return len(self.orders)

    @property
    def num_stages(self) -> int:
        """Number of stages. A rank may hold several."""
        return len(self.holders)

    def keeps(self, action: Action) -> bool:
        """Whether the action keeps activations for a backward pass: forward passes do, but for earlier turns."""
        return action.kind == FORWARD and action.turn == self.num_forwards - 1

    def in_flight(self, rank: int, stage: int) -> int:
        """Largest number of micro-batches whose activations of this stage the rank holds at once."""
        held = most = 0
        for action in self.orders[rank]:
            if action.stage == stage:
                held += self.keeps(action) - action.frees
                most = max(most, held)
        return most


def starts(schedule: Schedule, durations: Mapping[Pass, float] | None = None) -> dict[Step, float]:
    """When each action starts if passes take ``durations`` (default: 1 each) and communication takes no time.

    Raises ``ValueError`` for a deadlock.
    """
    begun: dict[Step, float] = {}
    ended: dict[Step, float] = {}
    place, free = [0] * schedule.num_ranks, [0.0] * schedule.num_ranks
    waiting: defaultdict[Step, list[int]] = defaultdict(list)  # ranks that wait for a step
    runnable = deque(range(schedule.num_ranks))
    while runnable:
        rank = runnable.popleft()
        while place[rank] < len(schedule.orders[rank]):
            step = rank, schedule.orders[rank][place[rank]]
            missing = next((one for one in schedule.needs[step] if one not in ended), None)
            if missing is not None:
                waiting[missing].append(rank)
                break
            begun[step] = max([free[rank], *(ended[one] for one in schedule.needs[step])])
            free[rank] = ended[step] = begun[step] + (durations[step[1].kind] if durations else 1)
            place[rank] += 1
            runnable.extend(waiting.pop(step, ()))
    if stuck := [rank for rank, order in enumerate(schedule.orders) if place[rank] < len(order)]:
        raise ValueError(_deadlock(schedule, stuck, place, ended))
    return begun


def _deadlock(schedule: Schedule, stuck: Sequence[int], place: Sequence[int], ended: Mapping[Step, float]) -> str:
    said = []
    for rank in stuck:
        action = schedule.orders[rank][place[rank]]
        missing, needed = next(one for one in schedule.needs[rank, action] if one not in ended)
        found = schedule.orders[missing].index(needed)
        said.append(f"rank {rank} waits at {place[rank]} ({action}) for rank {missing} at {found} ({needed})")
        if missing == rank:
            return (
                f"{schedule.name}: wrong order on rank {rank}: {action} (at {place[rank]}) needs {needed} (at {found})"
            )
    return f"{schedule.name}: deadlock: {'; '.join(said)}"


def _check_actions(schedule: Schedule) -> None:
    """Raise ``ValueError`` unless each rank runs each pass of each of its stages once."""
    name, held = schedule.name, _stages_of(schedule)
    for rank, order in enumerate(schedule.orders):
        for place, action in enumerate(order):
            if action.stage not in held[rank]:
                raise ValueError(f"{name}: rank {rank} at {place} runs {action}, but does not hold that stage")
            most_turns = schedule.num_forwards if action.kind == FORWARD else 1
            if not (0 <= action.micro_batch < schedule.num_micro_batches and 0 <= action.turn < most_turns):
                raise ValueError(f"{name}: rank {rank} at {place} runs {action}, which does not exist")
        counts = Counter(order)
        if twice := next((action for action, count in counts.items() if count > 1), None):
            places = [place for place, action in enumerate(order) if action == twice]
            raise ValueError(f"{name}: rank {rank} runs {twice} more than once, at {places}")
        for stage in held[rank]:
            for number in range(schedule.num_micro_batches):
                _check_passes(schedule, rank, stage, number, counts)


def _check_passes(schedule: Schedule, rank: int, stage: int, number: int, counts: Mapping[Action, int]) -> None:
    for turn in range(schedule.num_forwards):
        if (action := Action(stage, number, FORWARD, turn)) not in counts:
            raise ValueError(f"{schedule.name}: rank {rank} never runs {action}")
    whole, *parts = (Action(stage, number, kind) for kind in (BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT))
    found = [part for part in parts if part in counts]
    if whole in counts and found:
        raise ValueError(f"{schedule.name}: rank {rank} runs {whole} both whole and in parts ({found[0].kind})")
    if whole not in counts and len(found) < 2:
        missing = next((part for part in parts if part not in counts), whole) if found else whole
        raise ValueError(f"{schedule.name}: rank {rank} never runs {missing}")


def _stages_of(schedule: Schedule) -> list[set[int]]:
    held: list[set[int]] = [set() for _ in schedule.orders]
    for stage, ranks in enumerate(schedule.holders):
        if not ranks or len(set(ranks)) < len(ranks) or not all(0 <= rank < len(held) for rank in ranks):
            raise ValueError(
                f"{schedule.name}: stage {stage} needs different ranks of 0 to {len(held) - 1}, got {ranks}"
            )
        for rank in ranks:
            held[rank].add(stage)
    return held


def _check_shared_stages(schedule: Schedule) -> None:
    """Ranks that share stages communicate in every pass of them, so all must run these passes in the same order."""
    shared = {stage for stage, ranks in enumerate(schedule.holders) if len(ranks) > 1}
    for ranks in {schedule.holders[stage] for stage in shared}:
        of_these = {stage for stage in shared if schedule.holders[stage] == ranks}
        first, *others = ([one for one in schedule.orders[rank] if one.stage in of_these] for rank in ranks)
        for rank, order in zip(ranks[1:], others, strict=True):
            for ours, theirs in zip(first, order, strict=True):
                if ours != theirs:
                    raise ValueError(
                        f"{schedule.name}: ranks {ranks[0]} and {rank} share stages but run their passes in different "
                        f"orders: {ours} on rank {ranks[0]} where rank {rank} runs {theirs}"
                    )


def _needs(schedule: Schedule) -> dict[Step, tuple[Step, ...]]:
    """The steps whose results each step needs."""
    parts = {step for step in _steps(schedule) if step[1].kind == BACKWARD_INPUT}
    return {step: tuple(_needed(schedule, *step, parts)) for step in _steps(schedule)}


def _steps(schedule: Schedule) -> Iterator[Step]:
    return ((rank, action) for rank, order in enumerate(schedule.orders) for action in order)


def _needed(schedule: Schedule, rank: int, action: Action, parts: set[Step]) -> Iterator[Step]:
    stage, number, last = action.stage, action.micro_batch, schedule.num_stages - 1
    if action.kind == FORWARD:
        before = (stage - 1, action.turn) if stage else (last, action.turn - 1)
        if before[1] >= 0:
            yield from ((other, Action(before[0], number, FORWARD, before[1])) for other in schedule.holders[before[0]])
    elif action.kind == BACKWARD_WEIGHT:
        yield rank, Action(stage, number, BACKWARD_INPUT)
    else:
        yield rank, Action(stage, number, FORWARD, schedule.num_forwards - 1)
        if stage < last:
            for other in schedule.holders[stage + 1]:
                in_parts = other, Action(stage + 1, number, BACKWARD_INPUT)
                yield in_parts if in_parts in parts else (other, Action(stage + 1, number, BACKWARD))
