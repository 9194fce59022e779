"""Logs of four blocks against those of as many as there are, both written by the same simple model of training."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.peaks.depth import TRACED_BLOCKS, Passes, stretch
from estimators.work import Work, WorkCounter

SIZES = st.lists(st.integers(1, 10**6), min_size=1, max_size=4)


@dataclass
class Writer:
    """Writes the log of a step of ``num_blocks`` blocks."""

    num_blocks: int
    states: list[int]
    saved: list[int]
    temporary: list[int]
    micro_batches: int = 1
    odd_block: int = -1  # saves one buffer more than the others
    cached: str = ""  # each block makes a buffer that is freed between the passes: all up, down, or the last two first
    hoards: bool = False  # what each block saves is freed at the end only, outside of the blocks
    events: list[tuple[int, int]] = field(default_factory=list)
    marks: list[tuple[int, int | None, Work]] = field(default_factory=list)
    owners: dict[int, int] = field(default_factory=dict)
    num_buffers: int = 0
    streams: dict[int, int] = field(default_factory=dict)
    odd_stream: int = -1  # the block whose temporary buffers are on a stream that others are not on
    done: WorkCounter = field(default_factory=WorkCounter)

    def new(self, size: int, stream: int = 0) -> int:
        if stream:
            self.streams[self.num_buffers] = stream
        self.events.append((self.num_buffers, size))
        self.num_buffers += 1
        return self.num_buffers - 1

    def free(self, *buffers: int) -> None:
        self.events += [(buffer, 0) for buffer in buffers]

    def written(self) -> Passes:
        self.new(1000)
        for block in range(self.num_blocks):
            for size in self.states:
                self.owners[self.new(size)] = block
        num_before = len(self.events)
        gradients: dict[int, list[int]] = {}
        for _ in range(self.micro_batches):
            kept = {block: self.forward(block) for block in range(self.num_blocks)}
            self.marks.append((len(self.events), None, self.done.work))
            if self.cached:
                self.free_cached([buffers.pop() for buffers in kept.values()])
            gradient = self.new(77)
            for block in reversed(range(self.num_blocks)):
                gradient = self.backward(block, gradient, kept[block], gradients)
            self.free(gradient)
            if self.hoards:
                for buffers in kept.values():
                    self.free(*buffers)
        categories = ["scratch"] * self.num_buffers
        return Passes(tuple(self.events), categories, self.done.work, num_before, self.owners, self.marks, self.streams)

    def free_cached(self, buffers: list[int]) -> None:
        """Free one buffer of each block."""
        if self.cached == "mixed":
            self.free(*reversed(buffers[-2:]), *buffers[:-2])
        else:
            self.free(*(buffers if self.cached == "up" else reversed(buffers)))

    def forward(self, block: int) -> list[int]:
        self.marks.append((len(self.events), block, self.done.work))
        self.done.add("matmul", 100, 10)
        kept = [self.new(size) for size in self.saved]
        if block == self.odd_block:
            kept.append(self.new(5))
        for size in self.temporary:
            self.free(self.new(size, stream=3 if block == self.odd_stream else 1))
        return [*kept, self.new(66)] if self.cached else kept

    def backward(self, block: int, gradient: int, kept: list[int], gradients: dict[int, list[int]]) -> int:
        self.marks.append((len(self.events), block, self.done.work))
        self.done.add("copy", 200, 30)
        mine = self.new(88)
        self.free(gradient)
        fresh = [self.new(size, stream=2) for size in self.states]
        if block in gradients:
            self.free(*fresh)
        else:
            gradients[block] = fresh
        if not self.hoards:
            self.free(*kept)
        return mine


def same(passes: Passes, other: Passes) -> bool:
    return (passes.held_before, passes.work, streams(passes)) == (
        other.held_before,
        other.work,
        streams(other),
    ) and all(a.begins_with(b) for a, b in ((passes, other), (other, passes)))


def streams(passes: Passes) -> list[int]:
    """Stream of each event."""
    return [passes.streams.get(buffer, 0) for buffer, _ in passes.events[passes.num_before :]]


@given(SIZES, SIZES, SIZES, st.integers(TRACED_BLOCKS, 12), st.integers(1, 2))
def test_the_stretched_log_is_that_of_all_blocks(
    states: list[int], saved: list[int], temporary: list[int], num_blocks: int, micro_batches: int
) -> None:
    few, all_of_them = (
        Writer(number, states, saved, temporary, micro_batches).written() for number in (TRACED_BLOCKS, num_blocks)
    )
    stretched = stretch(few, num_blocks)
    assert stretched is not None and same(stretched, all_of_them)
    assert stretched.held_after == all_of_them.held_after
    assert stretched.peak.fixed_bytes == all_of_them.peak.fixed_bytes


@pytest.mark.parametrize("odd_block", [1, 2])
def test_a_block_in_the_middle_that_differs_is_refused(odd_block: int) -> None:
    assert stretch(Writer(TRACED_BLOCKS, [3], [4], [5], odd_block=odd_block).written(), 9) is None
    assert stretch(Writer(TRACED_BLOCKS, [3], [4], [5], odd_stream=odd_block).written(), 9) is None


def test_states_that_are_alive_before_move_no_buffer_to_another_stream() -> None:
    passes = Writer(TRACED_BLOCKS, [3], [4], [5]).written()
    assert set(streams(passes)) == {0, 1, 2} and streams(passes.after([7, 7])) == streams(passes)


@pytest.mark.parametrize("odd_block", [0, 3])
def test_the_first_and_the_last_may_differ(odd_block: int) -> None:
    few = Writer(TRACED_BLOCKS, [3], [4], [5], odd_block=odd_block).written()
    nine = Writer(9, [3], [4], [5], odd_block=8 if odd_block else 0).written()
    stretched = stretch(few, 9)
    assert stretched is not None and same(stretched, nine)


def test_memory_of_blocks_that_is_freed_outside_of_them_is_refused() -> None:
    assert stretch(Writer(TRACED_BLOCKS, [3], [4], [5], hoards=True).written(), 9) is None


@pytest.mark.parametrize("cached", ["up", "down"])
def test_what_is_freed_of_each_block_in_turn_is_freed_of_all(cached: str) -> None:
    few, nine = (Writer(number, [3], [4], [5], cached=cached).written() for number in (TRACED_BLOCKS, 9))
    stretched = stretch(few, 9)
    assert stretched is not None and same(stretched, nine)


def test_what_is_freed_in_another_order_is_refused() -> None:
    assert stretch(Writer(TRACED_BLOCKS, [3], [4], [5], cached="mixed").written(), 9) is None


def test_blocks_that_run_in_another_order_are_refused() -> None:
    passes = Writer(TRACED_BLOCKS, [3], [4], [5]).written()
    (position, _, work), *rest = passes.marks
    assert (
        stretch(
            Passes(passes.events, passes.categories, passes.work, 5, passes.owners, [(position, 2, work), *rest]), 9
        )
        is None
    )
