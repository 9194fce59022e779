"""The schedule of a pipeline: which rank runs which passes in which order, and the check that this order can run.

A schedule that exists is valid: every pass runs once, in dependency order, without deadlock. The schedules that have
names are in ``schedules``; how long one takes is in ``simulator``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate, chain
from typing import NamedTuple, NoReturn


class Pass(StrEnum):
    """A kind of action. A backward pass is one action, or two: gradients of inputs first, then of weights."""

    FORWARD = "forward"
    BACKWARD = "backward"
    BACKWARD_INPUT = "backward of the input"
    BACKWARD_WEIGHT = "backward of the weights"

    __hash__ = str.__hash__  # an enum's own is slow


FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT = Pass


class Action(NamedTuple):
    """One pass of one micro-batch through one stage. A tuple, because simulations look up many of them."""

    stage: int
    micro_batch: int
    kind: Pass = FORWARD

    @property
    def frees(self) -> bool:
        """Whether the activations of the forward pass are no longer needed afterwards."""
        return self.kind in (BACKWARD, BACKWARD_WEIGHT)

    def __str__(self) -> str:
        return f"{self.kind} of micro-batch {self.micro_batch} on stage {self.stage}"


@dataclass(frozen=True, slots=True)
class ActionGraph:
    """The dependencies of a schedule. Its actions are numbered rank by rank, in the order in which they run.

    ``bounds`` has the number of each rank's first action, and the number of all actions at the end. The other lists
    have an entry for each action: ``needs`` are the actions whose results it needs, and ``wanted_here`` the actions of
    its own rank that need its result. ``wanted_by`` are the other ranks that need it, each with its actions that do.
    ``held`` numbers what the action works on: the activations of one micro-batch of one stage on one rank.
    """

    bounds: Sequence[int]
    ranks: Sequence[int]
    actions: Sequence[Action]
    held: Sequence[int]
    needs: Sequence[Sequence[int]]
    wanted_here: Sequence[Sequence[int]]
    wanted_by: Sequence[Sequence[tuple[int, Sequence[int]]]]


@dataclass(frozen=True, slots=True)
class PipelineSchedule:
    """The actions of each rank in their order. ``holders`` are the ranks of each stage: one, or several that share it.

    Stages are numbered in the direction of the forward pass. Each holder of a shared stage runs all of its passes on
    its part of the layers; the next stage needs the results of all parts. Raises ``ValueError``, which says what is
    wrong and where, for orders that cannot run.
    """

    name: str
    orders: tuple[tuple[Action, ...], ...]
    holders: tuple[tuple[int, ...], ...]
    num_micro_batches: int
    graph: ActionGraph = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        numbers = _Numbers.of(self)
        _check_shared_stages(self)
        object.__setattr__(self, "graph", _graph(self, numbers))
        starts(self)  # which finds a deadlock

    @property
    def num_ranks(self) -> int:
        """Ranks in the pipeline."""
        return len(self.orders)

    @property
    def num_stages(self) -> int:
        """Number of stages. A rank may hold several."""
        return len(self.holders)

    def in_flight(self, rank: int, stage: int) -> int:
        """Largest number of micro-batches whose activations of this stage the rank holds at once."""
        held = most = 0
        for action in self.orders[rank]:
            if action.stage == stage:
                held += (action.kind == FORWARD) - action.frees
                most = max(most, held)
        return most


def starts(schedule: PipelineSchedule, durations: Mapping[Pass, float] | None = None) -> list[float]:
    """When each action of the graph starts if passes take ``durations`` (default: 1) and messages no time.

    Raises ``ValueError`` for a deadlock.
    """
    graph = schedule.graph
    needs, bounds = graph.needs, graph.bounds
    lasting = [durations[action.kind] for action in graph.actions] if durations else [1.0] * len(graph.actions)
    begun, ended = [0.0] * len(lasting), [-1.0] * len(lasting)
    at = list(bounds[:-1])
    waiting: defaultdict[int, list[int]] = defaultdict(list)  # ranks that wait for an action
    runnable = list(range(schedule.num_ranks))
    while runnable:
        rank = runnable.pop()
        number, last = at[rank], bounds[rank + 1]
        now = ended[number - 1] if number > bounds[rank] else 0.0
        while number < last:
            missing = None
            for needed in needs[number]:
                if ended[needed] < 0:
                    missing = needed
                    break
                now = max(now, ended[needed])
            if missing is not None:
                waiting[missing].append(rank)
                break
            begun[number] = now
            now = ended[number] = now + lasting[number]
            if number in waiting:
                runnable += waiting.pop(number)
            number += 1
        at[rank] = number
    if stuck := [rank for rank in range(schedule.num_ranks) if at[rank] < bounds[rank + 1]]:
        raise ValueError(_deadlock(schedule, stuck, at, ended))
    return begun


def _deadlock(schedule: PipelineSchedule, stuck: Sequence[int], at: Sequence[int], ended: Sequence[float]) -> str:
    graph, said = schedule.graph, []
    for rank in stuck:
        action, place = graph.actions[at[rank]], at[rank] - graph.bounds[rank]
        number = next(need for need in graph.needs[at[rank]] if ended[need] < 0)
        missing, needed = graph.ranks[number], graph.actions[number]
        needed_place = number - graph.bounds[missing]
        said.append(f"rank {rank} waits at {place} ({action}) for rank {missing} at {needed_place} ({needed})")
        if missing == rank:
            return (
                f"{schedule.name}: wrong order on rank {rank}: {action} (at {place}) needs {needed} (at {needed_place})"
            )
    return f"{schedule.name}: deadlock: {'; '.join(said)}"


_PLACES = {FORWARD: 0, BACKWARD: 1, BACKWARD_INPUT: 1, BACKWARD_WEIGHT: 2}
_NUM_KINDS = 3


class _Numbers(NamedTuple):
    """The number of each action, looked up by what it does.

    ``slots`` numbers the stages of each rank. The forward pass of micro-batch m in slot s is at ``_NUM_KINDS`` ·
    (s · micro-batches + m); then comes its backward pass, or that of its inputs, and then that of its weights. A number
    is −1 where there is none.
    """

    slots: Sequence[Mapping[int, int]]
    of_pass: Sequence[int]
    keys: Sequence[int]

    @classmethod
    def of(cls, schedule: PipelineSchedule) -> _Numbers:
        """Raises ``ValueError`` unless each rank runs each pass of each of its stages once."""
        slots = _slots(schedule)
        num = schedule.num_micro_batches
        numbers = [-1] * (sum(map(len, slots)) * num * _NUM_KINDS)
        keys: list[int] = []
        for held, order in zip(slots, schedule.orders, strict=True):
            for stage, micro_batch, kind in order:
                if stage not in held or not 0 <= micro_batch < num:
                    _explain(schedule)
                key = (held[stage] * num + micro_batch) * _NUM_KINDS + _PLACES[kind]
                if numbers[key] >= 0:
                    _explain(schedule)
                numbers[key] = len(keys)
                keys.append(key)
        if not _are_complete(schedule, numbers):
            _explain(schedule)
        return cls(slots, numbers, keys)


def _are_complete(schedule: PipelineSchedule, numbers: Sequence[int]) -> bool:
    """Whether nothing is missing: gradients of weights are computed by themselves where those of inputs are."""
    actions = list(chain(*schedule.orders))
    forward, backward, weights = (numbers[place::_NUM_KINDS] for place in range(_NUM_KINDS))
    if min(forward, default=0) < 0 or min(backward, default=0) < 0:
        return False
    pairs = zip(backward, weights, strict=True)
    return all((actions[back].kind == BACKWARD_INPUT) == (weight >= 0) for back, weight in pairs)


def _explain(schedule: PipelineSchedule) -> NoReturn:
    """Raise a ``ValueError`` that says which pass is wrong or missing."""
    name, held = schedule.name, _slots(schedule)
    for rank, order in enumerate(schedule.orders):
        for index, action in enumerate(order):
            if action.stage not in held[rank]:
                raise ValueError(f"{name}: rank {rank} at {index} runs {action}, but does not hold that stage")
            if not 0 <= action.micro_batch < schedule.num_micro_batches:
                raise ValueError(f"{name}: rank {rank} at {index} runs {action}, which does not exist")
        counts = Counter(order)
        if twice := next((action for action, count in counts.items() if count > 1), None):
            places = [index for index, action in enumerate(order) if action == twice]
            raise ValueError(f"{name}: rank {rank} runs {twice} more than once, at {places}")
        for stage in held[rank]:
            for number in range(schedule.num_micro_batches):
                _explain_passes(schedule, rank, stage, number, counts)
    raise AssertionError(f"{name}: nothing is wrong")


def _explain_passes(
    schedule: PipelineSchedule, rank: int, stage: int, number: int, counts: Mapping[Action, int]
) -> None:
    if (action := Action(stage, number)) not in counts:
        raise ValueError(f"{schedule.name}: rank {rank} never runs {action}")
    backward, *parts = (Action(stage, number, kind) for kind in (BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT))
    parts_there = [part for part in parts if part in counts]
    if backward in counts and parts_there:
        raise ValueError(
            f"{schedule.name}: rank {rank} runs {backward} both whole and in parts ({parts_there[0].kind})"
        )
    if backward not in counts and len(parts_there) < 2:
        missing = next((part for part in parts if part not in counts), backward) if parts_there else backward
        raise ValueError(f"{schedule.name}: rank {rank} never runs {missing}")


def _slots(schedule: PipelineSchedule) -> list[dict[int, int]]:
    """The stages of each rank, each with its number among all stages of all ranks."""
    held: list[dict[int, int]] = [{} for _ in schedule.orders]
    num = 0
    for stage, ranks in enumerate(schedule.holders):
        if not ranks or len(set(ranks)) < len(ranks) or not all(0 <= rank < len(held) for rank in ranks):
            raise ValueError(
                f"{schedule.name}: stage {stage} needs different ranks of 0 to {len(held) - 1}, got {ranks}"
            )
        for rank in ranks:
            held[rank][stage] = num
            num += 1
    return held


def _check_shared_stages(schedule: PipelineSchedule) -> None:
    """Ranks that share stages communicate in every pass of them, so all must run these passes in the same order."""
    shared = {stage for stage, ranks in enumerate(schedule.holders) if len(ranks) > 1}
    for ranks in {schedule.holders[stage] for stage in shared}:
        of_these = {stage for stage in shared if schedule.holders[stage] == ranks}
        first, *others = ([action for action in schedule.orders[rank] if action.stage in of_these] for rank in ranks)
        for rank, order in zip(ranks[1:], others, strict=True):
            if order == first:
                continue
            ours, theirs = next(pair for pair in zip(first, order, strict=True) if pair[0] != pair[1])
            raise ValueError(
                f"{schedule.name}: ranks {ranks[0]} and {rank} share stages but run their passes in different "
                f"orders: {ours} on rank {ranks[0]} where rank {rank} runs {theirs}"
            )


def _graph(schedule: PipelineSchedule, numbers: _Numbers) -> ActionGraph:
    ranks = [rank for rank, order in enumerate(schedule.orders) for _ in order]
    actions = list(chain(*schedule.orders))
    needs = _needs(schedule, numbers, actions)
    # Tuples of numbers, unlike lists, do not keep Python's garbage collector busy.
    here: list[tuple[int, ...]] = [()] * len(actions)
    dependencies: list[tuple[tuple[int, tuple[int, ...]], ...]] = [()] * len(actions)
    for number, rank in enumerate(ranks):
        for needed in needs[number]:
            of_needed = dependencies[needed]
            if ranks[needed] == rank:
                here[needed] += (number,)
            elif of_needed and of_needed[-1][0] == rank:  # a rank's actions are numbered in a row
                dependencies[needed] = (*of_needed[:-1], (rank, (*of_needed[-1][1], number)))
            else:
                dependencies[needed] = (*of_needed, (rank, (number,)))
    held = [key // _NUM_KINDS for key in numbers.keys]
    bounds = [0, *accumulate(map(len, schedule.orders))]
    return ActionGraph(bounds, ranks, actions, held, needs, here, dependencies)


def _needs(schedule: PipelineSchedule, numbers: _Numbers, actions: Sequence[Action]) -> list[Sequence[int]]:
    """The actions whose results each action needs."""
    of_pass = numbers.of_pass
    last, per_slot = schedule.num_stages - 1, schedule.num_micro_batches * _NUM_KINDS
    # Where the passes of each stage are found on each of its holders.
    bases = [[numbers.slots[rank][stage] * per_slot for rank in ranks] for stage, ranks in enumerate(schedule.holders)]
    needs: list[Sequence[int]] = []
    for (stage, micro_batch, kind), key in zip(actions, numbers.keys, strict=True):
        place = micro_batch * _NUM_KINDS
        if kind == FORWARD:
            needs.append(tuple([of_pass[base + place] for base in bases[stage - 1]]) if stage else ())
        elif kind == BACKWARD_WEIGHT or stage == last:
            needs.append((of_pass[key - 1],))
        else:
            needs.append((of_pass[key - 1], *[of_pass[base + place + 1] for base in bases[stage + 1]]))
    return needs
