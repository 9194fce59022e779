"""Makes the schedules of pipelines that have names, for any number of ranks and micro-batches, and those of users.

A schedule of a user is a text: the passes of each rank in their order, as ``given`` reads them. It stands where others
have a name. How long a schedule takes is in ``simulator``.
"""

from __future__ import annotations

import hashlib
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from estimators.pipelining.passes import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    Action,
    Pass,
    PipelineSchedule,
    starts,
)


def gpipe(num_ranks: int, num_micro_batches: int) -> PipelineSchedule:
    """All forward passes, then all backward passes (Huang et al., "GPipe", 2019)."""
    orders = []
    for rank in _ranks(num_ranks, num_micro_batches):
        order = _Order()
        order.run(num_micro_batches, (rank, FORWARD))
        order.run(num_micro_batches, (rank, BACKWARD))
        orders.append(order)
    return _schedule("gpipe", orders, num_micro_batches)


def one_f_one_b(num_ranks: int, num_micro_batches: int) -> PipelineSchedule:
    """Each stage alternates between forward and backward, and holds as many micro-batches as stages are left.

    Source: Narayanan et al., "PipeDream", SOSP 2019; with a flush at the end of the step, as in Megatron-LM.
    """
    orders = []
    for rank in _ranks(num_ranks, num_micro_batches):
        order = _Order()
        ahead = min(num_micro_batches, num_ranks - rank)
        order.run(ahead, (rank, FORWARD))
        order.run(num_micro_batches - ahead, (rank, BACKWARD), (rank, FORWARD))
        order.run(ahead, (rank, BACKWARD))
        orders.append(order)
    return _schedule("1f1b", orders, num_micro_batches)


def interleaved(num_ranks: int, num_micro_batches: int, num_chunks: int = 2) -> PipelineSchedule:
    """1F1B where each rank holds ``num_chunks`` stages, so that filling the pipeline takes a part of the time.

    Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters", SC 2021. Raises
    ``ValueError`` unless the micro-batches divide into rounds of at least one for each rank.
    """
    rounds = max(1, num_micro_batches // num_ranks)
    if num_micro_batches % rounds:
        raise ValueError(
            f"interleaved 1F1B runs micro-batches in {rounds} equal rounds, one or more for each of {num_ranks} "
            f"ranks: {num_micro_batches} cannot be divided so, use {num_micro_batches - num_micro_batches % num_ranks}"
        )
    size, total = num_micro_batches // rounds, num_micro_batches * num_chunks
    orders = []
    for rank in _ranks(num_ranks, num_micro_batches):
        stages = [size * [chunk * num_ranks + rank] for chunk in range(num_chunks)]
        forward = [stage for _ in range(rounds) for chunk in stages for stage in chunk]
        backward = [stage for _ in range(rounds) for chunk in reversed(stages) for stage in chunk]
        ahead = min(total, (num_chunks - 1) * size + 2 * (num_ranks - 1 - rank))
        order = _Order()
        for stage in forward[:ahead]:
            order.add(stage, FORWARD)
        for ahead_stage, back_stage in zip(forward[ahead:], backward, strict=False):
            order.add(ahead_stage, FORWARD)
            order.add(back_stage, BACKWARD)
        for stage in backward[total - ahead :]:
            order.add(stage, BACKWARD)
        orders.append(order)
    return _schedule("interleaved", orders, num_micro_batches, num_chunks)


def zero_bubble(num_ranks: int, num_micro_batches: int) -> PipelineSchedule:
    """ZB-H1: 1F1B whose backward passes run in parts; gradients of weights fill bubbles, with the memory of 1F1B.

    Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024. Rank r delays the weights of r micro-batches, so
    that no rank holds more than the first.
    """
    orders = []
    for rank in _ranks(num_ranks, num_micro_batches):
        order = _Order()
        order.run(min(num_micro_batches, num_ranks - rank), (rank, FORWARD))
        for done in range(num_micro_batches):
            order.add(rank, BACKWARD_INPUT)
            if done >= rank:
                order.add(rank, BACKWARD_WEIGHT)
            if done + num_ranks - rank < num_micro_batches:
                order.add(rank, FORWARD)
        order.finish_weights(rank)
        orders.append(order)
    return _schedule("zb-h1", orders, num_micro_batches)


def zbv(num_ranks: int, num_micro_batches: int) -> PipelineSchedule:
    """ZB-V: each rank holds two stages in the shape of a V, and backward passes run in parts.

    Source: Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024. Its phases assume at least
    2 · ranks − 1 micro-batches; with fewer, those that are missing are left out of the same order.
    """
    num = max(2 * num_ranks - 1, num_micro_batches)
    orders = []
    for rank in _ranks(num_ranks, num_micro_batches):
        down, up, left = rank, 2 * num_ranks - 1 - rank, num_ranks - rank
        of_down, of_up = (((stage, BACKWARD_INPUT), (stage, BACKWARD_WEIGHT)) for stage in (down, up))
        order = _Order()
        order.run(2 * left - 1, (down, FORWARD))
        order.run(rank, (up, FORWARD), (down, FORWARD))
        order.run(left, (up, FORWARD), *of_up)
        order.run(num - order.count(down, FORWARD), (down, FORWARD), *of_down, (up, FORWARD), *of_up)
        order.run(num - order.count(up, FORWARD), *of_down, (up, FORWARD), *of_up)
        order.run(rank, (down, BACKWARD_INPUT), (up, BACKWARD_INPUT))
        order.run(left, *of_down)
        order.finish_weights(up)
        order.finish_weights(down)
        orders.append(order)
    return _schedule("zbv", orders, num_micro_batches)


def dual_pipe_v(num_ranks: int, num_micro_batches: int) -> PipelineSchedule:
    """DualPipeV: stages in the shape of a V; forward passes of one half alternate with backward passes of the other.

    Source: Qi et al., "DualPipe could be better without the Dual" (2025), a half of DeepSeek-V3's DualPipe. Raises
    ``ValueError`` for fewer micro-batches than stages.
    """
    if num_micro_batches < 2 * num_ranks:
        raise ValueError(f"DualPipeV needs at least {2 * num_ranks} micro-batches, got {num_micro_batches}")
    orders = []
    for rank in _ranks(num_ranks, num_micro_batches):
        down, up, right = rank, 2 * num_ranks - 1 - rank, num_ranks - 1 - rank
        order = _Order()
        order.run(2 * right, (down, FORWARD))
        order.run(rank + 1, (down, FORWARD), (up, FORWARD))
        order.run(right, (up, BACKWARD_INPUT), (up, BACKWARD_WEIGHT), (up, FORWARD))
        steady = num_micro_batches - 2 * num_ranks + rank + 1
        order.run(steady, (down, FORWARD), (up, BACKWARD), (up, FORWARD), (down, BACKWARD))
        order.run(right, (up, BACKWARD), (up, FORWARD), (down, BACKWARD))
        # In the second half of the last phase weights are delayed, to fill the bubbles at the end.
        num_rounds = 2 * ((rank + 1) // 2) + (rank + 1) % 2
        delayed: deque[int] = deque()
        for index in range(2 * (rank + 1)):
            stage = down if index % 2 else up
            order.add(stage, BACKWARD if index < num_rounds else BACKWARD_INPUT)
            delayed.extend([stage] * (index >= num_rounds))
        for _ in range(right):
            if delayed:
                order.add(delayed.popleft(), BACKWARD_WEIGHT)
            order.add(down, BACKWARD_INPUT)
            delayed.append(down)
        for stage in delayed:
            order.add(stage, BACKWARD_WEIGHT)
        orders.append(order)
    return _schedule("dualpipev", orders, num_micro_batches)


def interlaced(num_ranks: int, num_micro_batches: int) -> PipelineSchedule:
    """1F1B with a first and a last stage that all ranks share, such as a huge embedding and the layer that undoes it.

    The shared stages run between the steps of 1F1B, when the other stages are about to need them. Source: Lin et al.,
    "nnScaler" (SuperScaler), OSDI 2024.
    """
    inner = one_f_one_b(num_ranks, num_micro_batches)
    begun = dict(zip(inner.graph.actions, starts(inner, {FORWARD: 1.0, BACKWARD: 2.0}), strict=True))
    last = num_ranks + 1
    shared = []
    for number in range(num_micro_batches):
        enters = begun[Action(0, number)] - 1  # one forward pass ahead
        leaves = begun[Action(num_ranks - 1, number)] + 1
        returns = begun[Action(0, number, BACKWARD)] + 2
        shared += [(enters, 0, Action(0, number)), (leaves, 0, Action(last, number))]
        shared += [(leaves, 1, Action(last, number, BACKWARD)), (returns, 0, Action(0, number, BACKWARD))]
    orders = []
    for order in inner.orders:
        own_actions = [
            (begun[action], 2, Action(action.stage + 1, action.micro_batch, action.kind)) for action in order
        ]
        timed = sorted(
            [*shared, *own_actions], key=lambda item: item[:2]
        )  # stable: shared stages in one order on all ranks
        orders.append(tuple(action for *_, action in timed))
    return PipelineSchedule("interlaced", tuple(orders), holders_of("interlaced", num_ranks), num_micro_batches)


SCHEDULES: Mapping[str, Callable[[int, int], PipelineSchedule]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "zb-h1": zero_bubble,
    "zbv": zbv,
    "dualpipev": dual_pipe_v,
    "interlaced": interlaced,
}
"""Makers of schedules by name: (number of ranks, number of micro-batches) → schedule."""

IN_WHOLE = frozenset({"1f1b", "gpipe"})
"""Schedules with one stage on each rank, whose backward passes are whole."""

IN_PARTS = frozenset({"zb-h1", "zbv", "dualpipev"})
"""Schedules whose backward passes run in parts, or some of them."""

_KINDS = {"F": FORWARD, "B": BACKWARD, "I": BACKWARD_INPUT, "W": BACKWARD_WEIGHT}


@lru_cache(maxsize=64)
def given(text: str) -> PipelineSchedule:
    """The schedule that a user has written, such as ``0F0 0F1 0B0 0B1; 1F0 1B0 1F1 1B1``.

    Semicolons or lines divide ranks, and spaces or commas their passes. A pass is the number of the stage, a letter and
    the number of the micro-batch, as in the files of ``torch.distributed.pipelining``: F is forward, B backward, I
    backward of the inputs and W of the weights. Raises ``ValueError``, which says what is wrong and where, for passes
    that ranks cannot run.
    """
    orders = tuple(tuple(map(_pass, re.findall(r"[^\s,]+", line))) for line in re.split(r"[;\n]", text.strip()))
    held = [{action.stage for action in order} for order in orders]
    micro_batches = {action.micro_batch for order in orders for action in order}
    for noun, numbers in (("stage", set[int]().union(*held)), ("micro-batch", micro_batches)):
        if missing := set(range(len(numbers))) - numbers:
            raise ValueError(f"there is no {noun} {min(missing)}, but a later one: number them from 0")
    if 0 in map(len, held):
        raise ValueError(f"rank {list(map(len, held)).index(0)} has no passes")
    num_stages = len(set[int]().union(*held))
    holders = tuple(tuple(rank for rank, stages in enumerate(held) if n in stages) for n in range(num_stages))
    for number, ranks in enumerate(holders):
        if len(ranks) > 1:
            raise ValueError(f"ranks {ranks[0]} and {ranks[1]} run stage {number}: a stage is on one rank")
    return PipelineSchedule(short_name(text), orders, holders, len(micro_batches))


def _pass(word: str) -> Action:
    parts = re.fullmatch(r"(\d{1,6})([FBIW])(\d{1,6})", word)
    if parts is None:
        raise ValueError(f"{word!r} is no pass: write the stage, F, B, I or W, and the micro-batch, such as 0F1")
    return Action(int(parts[1]), int(parts[3]), _KINDS[parts[2]])


def short_name(name: str) -> str:
    """The name of a schedule; for one that a user gives, a name that only this order has."""
    return name if name in SCHEDULES else f"order-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def in_parts(name: str) -> bool:
    """Whether backward passes run in parts, or some of them."""
    if name in SCHEDULES:
        return name in IN_PARTS
    return any(action.kind == BACKWARD_INPUT for order in given(name).orders for action in order)


@lru_cache(maxsize=256)
def schedule_of(name: str, num_ranks: int, num_micro_batches: int) -> PipelineSchedule:
    """The schedule of this name, kept. Raises ``ValueError`` if it does not take this many ranks or micro-batches."""
    if name in SCHEDULES:
        return SCHEDULES[name](num_ranks, num_micro_batches)
    schedule = given(name)
    if (schedule.num_ranks, schedule.num_micro_batches) != (num_ranks, num_micro_batches):
        raise ValueError(
            f"the order of passes has {schedule.num_ranks} ranks and {schedule.num_micro_batches} micro-batches, and "
            f"the plan {num_ranks} and {num_micro_batches}: they are pp and num_micro_batches"
        )
    return schedule


@lru_cache(maxsize=256)
def stages_of(name: str, num_ranks: int, rank: int) -> tuple[int, ...]:
    """Numbers of the stages that a rank has."""
    return tuple(stage for stage, ranks in enumerate(holders_of(name, num_ranks)) if rank in ranks)


def holders_of(name: str, num_ranks: int, num_chunks: int = 2) -> tuple[tuple[int, ...], ...]:
    """The ranks of each stage in the schedule of this name; ``num_chunks`` are the stages of a rank if interleaved."""
    if name not in SCHEDULES:
        return given(name).holders
    row = tuple((rank,) for rank in range(num_ranks))
    if name == "interleaved":
        return row * num_chunks
    if name in ("zbv", "dualpipev"):
        return (*row, *reversed(row))
    if name == "interlaced":
        return (tuple(range(num_ranks)), *row, tuple(range(num_ranks)))
    return row


class _Order:
    """The order of one rank in the making: each action is of the next micro-batch of its stage and kind."""

    def __init__(self) -> None:
        self.actions: list[Action] = []
        self._next: dict[tuple[int, Pass], int] = {}

    def add(self, stage: int, kind: Pass) -> None:
        """Add the next pass of this kind; a whole backward pass counts as both of its parts."""
        part = BACKWARD_INPUT if kind == BACKWARD else kind
        number = self._next.get((stage, part), 0)
        self.actions.append(Action(stage, number, kind))
        self._next[stage, part] = number + 1
        if kind == BACKWARD:
            self._next[stage, BACKWARD_WEIGHT] = number + 1

    def run(self, times: int, *actions: tuple[int, Pass]) -> None:
        """Add these (stage, kind) ``times`` times."""
        for _ in range(times):
            for stage, kind in actions:
                self.add(stage, kind)

    def count(self, stage: int, kind: Pass) -> int:
        return self._next.get((stage, kind), 0)

    def finish_weights(self, stage: int) -> None:
        while self.count(stage, BACKWARD_WEIGHT) < self.count(stage, BACKWARD_INPUT):
            self.add(stage, BACKWARD_WEIGHT)


def _schedule(name: str, orders: Sequence[_Order], num_micro_batches: int, num_chunks: int = 2) -> PipelineSchedule:
    kept = (tuple(action for action in order.actions if action.micro_batch < num_micro_batches) for order in orders)
    return PipelineSchedule(name, tuple(kept), holders_of(name, len(orders), num_chunks), num_micro_batches)


def _ranks(num_ranks: int, num_micro_batches: int) -> range:
    if num_ranks < 1 or num_micro_batches < 1:
        raise ValueError(f"num_ranks and num_micro_batches must be at least 1, got {num_ranks} and {num_micro_batches}")
    return range(num_ranks)
