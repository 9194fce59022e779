"""Stretches the log of a model of a few equal blocks to any number of blocks: exactly, or not at all.

A log is cut where a block begins its forward or its backward pass. If the second and the third block do the same with
the same buffers, identified relative to the block, then so does every other block between the first and the last.
Nothing is traced here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from estimators.peaks.envelope import EventLog, Line, constant_peak, live_bytes
from estimators.work import Operation, Work

TRACED_BLOCKS = 4
"""Number of blocks traced: the first and the last have neighbours that are not blocks, and the two between are
compared."""


class _Home(NamedTuple):
    """Where a buffer first appears.

    ``visit`` counts earlier visits of the block, or for parts that belong to no block (None) these parts; it is -1 for
    buffers alive before the passes. ``number`` counts the buffers of this ``size`` and ``category`` there (see
    ``homes_of``).
    """

    visit: int
    block: int | None
    size: int
    category: str
    number: int

    def moved(self, blocks: int) -> _Home:
        """Home of the same buffer of a block that is ``blocks`` later."""
        return self if self.block is None else _Home(self.visit, self.block + blocks, *self[2:])


class _RelativeEvent(NamedTuple):
    """An event of a buffer whose ``home`` is relative to a block: ``size`` bytes are held from now on."""

    home: _Home
    size: int
    category: str
    stream: int

    def moved(self, blocks: int) -> _RelativeEvent:
        """Event of the same buffer of a block that is ``blocks`` later."""
        return _RelativeEvent(self.home.moved(blocks), *self[1:])


@dataclass(frozen=True, slots=True)
class Passes:
    """The log of the forward and backward passes of one step. Buffers are numbered in order of their first event.

    ``categories`` has the category of each buffer. The first ``num_before`` events are the buffers alive before the
    passes; ``owners`` maps those that belong to a block to their block. ``marks`` are (event, block, work): a pass of
    the block begins before this event (None: a part that belongs to no block), and this work is done by then.
    ``forward`` is the part of ``work`` that is done before the first backward pass begins. ``streams`` maps a buffer to
    the stream on which a GPU would allocate it, unless that is the compute stream, which is 0. ``operations`` are those
    of the work, if they were asked for. ``objects`` are the most bytes of autograd's objects at a time, by block (-1:
    outside of blocks).
    """

    events: EventLog
    categories: Sequence[str]
    work: Work
    num_before: int = 0
    owners: Mapping[int, int] = field(default_factory=dict)
    marks: Sequence[tuple[int, int | None, Work]] = ()
    streams: Mapping[int, int] = field(default_factory=dict)
    forward: Work = field(default_factory=Work)
    operations: Sequence[Operation] = ()
    objects: Mapping[int, int] = field(default_factory=dict)

    @property
    def object_bytes(self) -> int:
        """The most bytes of autograd's objects at a time: host memory that is in no event."""
        return sum(self.objects.values())

    @property
    def held_before(self) -> int:
        """Bytes alive before the passes: the states, if nothing else is left of earlier steps."""
        return sum(size for _, size in self.events[: self.num_before])

    @property
    def held_after(self) -> int:
        """Bytes alive when the optimizer begins: the states and gradients."""
        return sum(dict(self.events).values())

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the parameters' gradients when the optimizer begins."""
        return sum(size for buffer, size in dict(self.events).items() if self.categories[buffer] == "gradients")

    @property
    def peak(self) -> Line:
        """Peak bytes of the passes, with their categories."""
        return constant_peak(self.events, self.categories)

    def held(self, category: str) -> list[int]:
        """Bytes of each buffer of this category that is alive before the passes."""
        return [size for buffer, size in self.events[: self.num_before] if self.categories[buffer] == category]

    def after(self, states: Sequence[int]) -> Passes:
        """Adds optimizer states that are alive before the passes, in buffers of ``states`` bytes each."""
        more = len(states)
        events = (*enumerate(states), *((buffer + more, size) for buffer, size in self.events))
        owners = {buffer + more: block for buffer, block in self.owners.items()}
        marks = [(event + more, block, work) for event, block, work in self.marks]
        streams = {buffer + more: stream for buffer, stream in self.streams.items()}
        categories = ("optimizer",) * more + tuple(self.categories)
        return Passes(
            events=events,
            categories=categories,
            work=self.work,
            num_before=self.num_before + more,
            owners=owners,
            marks=marks,
            streams=streams,
            forward=self.forward,
            objects=self.objects,
        )

    def equals(self, other: Passes) -> bool:
        """Whether both logs allocate and free the same amounts, event by event, whatever is alive before them."""
        return self.begins_with(other) and other.begins_with(self)

    def begins_with(self, other: Passes) -> bool:
        """Whether this log begins like ``other``: the bytes alive rise and fall by the same amounts, event by event."""
        mine, others = (live_bytes(p.events)[p.num_before :] - p.held_before for p in (self, other))
        return len(others) > 0 and np.array_equal(mine[: len(others)], others)


@dataclass(frozen=True, slots=True)
class Segment:
    """The part of a log that belongs to one visit of a block (None: to a part that belongs to no block).

    ``forward`` is the part of ``work`` that is done before the first backward pass begins.
    """

    visit: int
    block: int | None
    events: EventLog
    work: Work
    forward: Work


class _CannotStretch(Exception):
    """The log cannot be stretched."""


def stretch(passes: Passes, num_blocks: int) -> Passes | None:
    """The passes that ``num_blocks`` blocks would log, from those of ``TRACED_BLOCKS`` blocks.

    None if the blocks differ in what they do, or if something outside of them touches the memory of a block in the
    middle.
    """
    try:
        return _stretch(passes, num_blocks)
    except _CannotStretch:
        return None


def _stretch(passes: Passes, num_blocks: int) -> Passes:
    segments = list(segments_of(passes))
    homes = homes_of(passes, segments)

    def relative(events: EventLog, block: int | None) -> list[_RelativeEvent]:
        """The events, with the homes of buffers relative to ``block``."""
        back, categories, stream_of = -(block or 0), passes.categories, passes.streams.get
        return [
            _RelativeEvent(homes[buffer].moved(back), size, categories[buffer], stream_of(buffer, 0))
            for buffer, size in events
        ]

    synthesis = _Synthesis()
    before = passes.events[: passes.num_before]
    states = [
        relative([event for event in before if homes[event[0]].block == block], block) for block in range(TRACED_BLOCKS)
    ]
    if any(state != states[0] for state in states):
        raise _CannotStretch("blocks have different states")
    for block in range(num_blocks):
        synthesis.extend(states[0], block)
    synthesis.extend(relative([event for event in before if homes[event[0]].block is None], None), 0)
    num_before, work, forward = len(synthesis.events), Work(), Work()
    marks: list[tuple[int, int | None, Work]] = []

    def append(segment: Segment, events: Sequence[_RelativeEvent], block: int | None) -> None:
        nonlocal work, forward
        if marks or len(synthesis.events) > num_before or block is not None:
            marks.append((len(synthesis.events), block, work))
        synthesis.extend(events, block or 0)
        work += segment.work
        forward += segment.forward

    for sweep in _sweeps(segments):
        if sweep[0].block is None:
            append(sweep[0], _outside(relative(sweep[0].events, None), num_blocks), None)
            continue
        by_block = sorted(sweep, key=lambda segment: segment.block or 0)
        first, second, third, last = (relative(segment.events, segment.block) for segment in by_block)
        if second != third:
            raise _CannotStretch("blocks differ")
        if any(abs(event.home.block or 0) > 1 for event in first + last):
            raise _CannotStretch("the first or the last block touches memory of one that is not its neighbour")
        rising = sweep[0].block == 0
        for block in range(num_blocks) if rising else reversed(range(num_blocks)):
            if block == 0:
                append(by_block[0], first, block)
            elif block == num_blocks - 1:
                append(by_block[-1], last, block)
            else:
                append(by_block[1], second, block)
    events, categories = tuple(synthesis.events), tuple(synthesis.categories)
    objects = stretched_objects(passes.objects, num_blocks)
    return Passes(
        events, categories, work, num_before, marks=marks, streams=synthesis.streams, forward=forward, objects=objects
    )


def stretched_objects(objects: Mapping[int, int], num_blocks: int) -> dict[int, int]:
    """The ``Passes.objects`` of ``num_blocks`` blocks, at least 2, from those of ``TRACED_BLOCKS`` blocks."""
    of_block = objects.get
    inner = dict.fromkeys(range(1, num_blocks - 1), max(of_block(1, 0), of_block(2, 0)))
    return {-1: of_block(-1, 0), 0: of_block(0, 0), **inner, num_blocks - 1: of_block(TRACED_BLOCKS - 1, 0)}


class _Synthesis:
    """A log under construction, whose buffers are identified by their homes."""

    def __init__(self) -> None:
        self.events: list[tuple[int, int]] = []
        self.categories: list[str] = []
        self.streams: dict[int, int] = {}
        self._numbers: dict[_Home, int] = {}

    def extend(self, events: Sequence[_RelativeEvent], block: int) -> None:
        """Append events whose homes are relative to ``block``."""
        for relative_home, size, category, stream in events:
            home = relative_home.moved(block)
            number = self._numbers.get(home)
            if number is None:
                if size == 0:
                    raise _CannotStretch("a buffer is freed that was never made")
                number = self._numbers[home] = len(self.categories)
                self.categories.append(category)
                if stream:
                    self.streams[number] = stream
            self.events.append((number, size))


def segments_of(passes: Passes) -> Iterator[Segment]:
    """Yield the events of the passes, without those before them, cut at the marks."""
    bounds = [(passes.num_before, None, Work()), *passes.marks, (len(passes.events), None, passes.work)]
    visits: dict[int | None, int] = {}
    for (start, block, work), (end, _, work_then) in pairwise(bounds):
        visits[block] = visits.get(block, -1) + 1
        forward = _earlier(passes.forward, work_then) - _earlier(passes.forward, work)
        yield Segment(visits[block], block, passes.events[start:end], work_then - work, forward)


def _earlier(first: Work, other: Work) -> Work:
    """The smaller of two amounts of work counted since the log began, which is the earlier one: work only grows."""
    return Work(tuple(map(min, first.amounts, other.amounts)))


def _sweeps(segments: Sequence[Segment]) -> list[list[Segment]]:
    """Groups of segments: each run over all blocks, up or down, is one group, as is each segment outside the blocks."""
    sweeps: list[list[Segment]] = []
    for segment in segments:
        if segment.block is None or not sweeps or sweeps[-1][0].block is None or len(sweeps[-1]) == TRACED_BLOCKS:
            sweeps.append([segment])
        else:
            sweeps[-1].append(segment)
    up = list(range(TRACED_BLOCKS))
    for sweep in sweeps:
        if sweep[0].block is not None and [segment.block for segment in sweep] not in (up, up[::-1]):
            raise _CannotStretch("blocks are not visited one after another")
    return sweeps


def homes_of(passes: Passes, segments: Sequence[Segment]) -> dict[int, _Home]:
    """The home of each buffer, by its number. Equal buffers of a block are counted from the last one back.

    The first block may make buffers that others do not make, for example its part of each sequence. What a block leaves
    to its neighbour is made at the end, or has a size of its own.
    """
    homes: dict[int, _Home] = {}
    counts: Counter[tuple[int, int | None, int, str]] = Counter()

    def settle(visit: int, block: int | None, buffer: int, size: int) -> None:
        if buffer not in homes:
            same = (size, passes.categories[buffer]) if block is not None else (0, "")
            kind = (visit, block, *same)
            counts[kind] += 1
            homes[buffer] = _Home(*kind, counts[kind])

    for buffer, size in passes.events[: passes.num_before]:
        settle(-1, passes.owners.get(buffer), buffer, size)
    for segment in segments:
        for buffer, size in segment.events:
            settle(segment.visit, segment.block, buffer, size)
    return {
        buffer: home if home.block is None else home._replace(number=home.number - counts[home[:4]])
        for buffer, home in homes.items()
    }


def _outside(events: Sequence[_RelativeEvent], num_blocks: int) -> list[_RelativeEvent]:
    """Events outside of the blocks for ``num_blocks`` blocks: the first stays the first, and the last the last.

    What is done to each block in turn, as when a cache of keys and values is freed, is done to all of them. The block
    before the last counts from the end: its output is freed after the last one, unless a backward pass needs it.
    """
    moved: list[_RelativeEvent] = []
    position = 0
    while position < len(events):
        if turn := _turn_of_each(events[position:]):
            rises = events[position].home.block == 0
            for block in range(num_blocks) if rises else reversed(range(num_blocks)):
                moved += [event.moved(block) for event in turn]
            position += len(turn) * TRACED_BLOCKS
        else:
            moved.append(_from_one_end(events[position], num_blocks))
            position += 1
    return moved


def _turn_of_each(events: Sequence[_RelativeEvent]) -> list[_RelativeEvent]:
    """The first events relative to a block, if they are repeated for each block from the first to the last or back.

    Empty if they are not.
    """
    blocks = [event.home.block for event in events]
    for order in (range(TRACED_BLOCKS), range(TRACED_BLOCKS)[::-1]):
        size = next((index for index, block in enumerate(blocks) if block != order[0]), len(blocks))
        if size and blocks[: size * TRACED_BLOCKS] == [block for block in order for _ in range(size)]:
            turns = [
                [event.moved(-block) for event in events[turn * size : (turn + 1) * size]]
                for turn, block in enumerate(order)
            ]
            if all(turn == turns[0] for turn in turns):
                return turns[0]
    return []


def _from_one_end(event: _RelativeEvent, num_blocks: int) -> _RelativeEvent:
    block = event.home.block
    if block in range(1, TRACED_BLOCKS - 2):
        raise _CannotStretch("memory of a block in the middle is touched outside of the blocks")
    is_near_end = block is not None and block > 0
    return event.moved(num_blocks - TRACED_BLOCKS) if is_near_end else event
