"""Replay reserves at least what is alive, and the smallest capacity that it finds is the smallest."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.model import MIB
from estimators.peaks.allocator import GRANULE, _Block, _Device, _ExpandablePool, _Pool, replay, smallest_capacity

Log = list[tuple[int, int]]

# Sizes on both sides of every rule's edge
SIZES = st.one_of(
    st.integers(1, 4096),
    st.integers(MIB - 1024, MIB + 1024),
    st.integers(1, 40 * MIB),
    st.sampled_from([1, 512, 513, MIB, MIB + 1, 10 * MIB - 512, 10 * MIB, 19 * MIB, 20 * MIB, 21 * MIB]),
)
# (bytes, which live buffer to free or resize instead, if any)
PROGRAMS = st.lists(st.tuples(SIZES, st.one_of(st.none(), st.integers(0, 50)), st.booleans()), max_size=60)
MODES = st.booleans()
NUM_STREAMS = st.integers(1, 3)


def log_of(program: list[tuple[int, int | None, bool]]) -> Log:
    log: Log = []
    live: list[int] = []
    for number, (size, victim, resize) in enumerate(program):
        if victim is None or not live:
            live.append(number)
            log.append((number, size))
        elif resize:
            log.append((live[victim % len(live)], size))
        else:
            log.append((live.pop(victim % len(live)), 0))
    return log


def streams_of(log: Log, num_streams: int) -> dict[int, int]:
    return {buffer: buffer % num_streams for buffer, _ in log}


def rounded_peak(log: Log) -> int:
    """Peak of the bytes alive after each event: a lower bound, since a resize holds both buffers for a moment."""
    held: dict[int, int] = {}
    peak = 0
    for buffer, size in log:
        held[buffer] = -(-size // 512) * 512
        peak = max(peak, sum(held.values()))
    return peak


@given(PROGRAMS, MODES, NUM_STREAMS)
def test_never_less_is_in_use_than_lives_nor_reserved_than_is_in_use(
    program: list[tuple[int, int | None, bool]], expandable: bool, num_streams: int
) -> None:
    log = log_of(program)
    state = replay(log, streams=streams_of(log, num_streams), expandable=expandable)
    assert state.fits and state.num_retries == 0
    assert rounded_peak(log) <= state.active_bytes <= state.reserved_bytes
    assert state.reserved_bytes % GRANULE == 0


@given(PROGRAMS, MODES, NUM_STREAMS)
def test_the_smallest_capacity_is_enough_and_one_granule_less_is_not(
    program: list[tuple[int, int | None, bool]], expandable: bool, num_streams: int
) -> None:
    log = log_of([(1, None, False), *program])
    replayed = partial(replay, log, streams=streams_of(log, num_streams), expandable=expandable)
    state, least = replayed(), smallest_capacity(log, streams=streams_of(log, num_streams), expandable=expandable)
    assert state.active_bytes <= least <= state.reserved_bytes
    at_least = replayed(capacity_bytes=least)
    assert at_least.fits and at_least.reserved_bytes <= least
    assert not replayed(capacity_bytes=least - GRANULE).fits


@given(PROGRAMS, MODES, NUM_STREAMS, st.integers(0, 100))
def test_what_would_be_reserved_without_a_limit_is_always_enough(
    program: list[tuple[int, int | None, bool]], expandable: bool, num_streams: int, more: int
) -> None:
    log = log_of(program)
    replayed = partial(replay, log, streams=streams_of(log, num_streams), expandable=expandable)
    assert replayed(capacity_bytes=replayed().reserved_bytes + more * MIB) == replayed()


@given(PROGRAMS, MODES, st.integers(1, 40))
def test_which_stream_it_is_makes_no_difference_where_there_is_but_one(
    program: list[tuple[int, int | None, bool]], expandable: bool, capacity_granules: int
) -> None:
    log = log_of(program)
    replayed = partial(replay, log, capacity_bytes=capacity_granules * GRANULE, expandable=expandable)
    assert replayed() == replayed(streams={buffer: 7 for buffer, _ in log}) == replayed(streams=streams_of(log, 1))


@given(PROGRAMS, MODES, NUM_STREAMS)
def test_without_a_limit_a_stream_reserves_what_it_would_if_it_were_alone(
    program: list[tuple[int, int | None, bool]], expandable: bool, num_streams: int
) -> None:
    log = log_of(program)
    together = replay(log, streams=streams_of(log, num_streams), expandable=expandable)
    alone = [[event for event in log if event[0] % num_streams == stream] for stream in range(num_streams)]
    assert together.reserved_bytes == sum(
        replay(stream_log, expandable=expandable).reserved_bytes for stream_log in alone
    )


@given(PROGRAMS, MODES, st.integers(1, 40))
def test_blocks_never_overlap_and_free_neighbours_are_one(
    program: list[tuple[int, int | None, bool]], expandable: bool, capacity_granules: int
) -> None:
    device = _Device(capacity_granules * GRANULE)
    pool = (_ExpandablePool if expandable else _Pool)(device, small=False)
    held: dict[int, _Block] = {}
    seen: dict[int, _Block] = {}
    for number, size in log_of(program):
        if number in held:
            pool.free(held.pop(number))
        block = pool.allocate(-(-size // 512) * 512) if size else None
        if size and block is None:
            pool.release()
            block = pool.allocate(-(-size // 512) * 512)
        if block is not None:
            held[number] = seen[id(block)] = block
        assert_sound(pool, device, list(held.values()))


def assert_sound(pool: _Pool, device: _Device, held: list[_Block]) -> None:
    blocks: dict[int, _Block] = {}
    for block in [*held, *(entry[2] for entry in pool._free)]:
        first = block
        while first.before is not None:
            first = first.before
        current: _Block | None = first
        while current is not None:
            blocks[id(current)] = current
            after = current.after
            if after is not None:
                assert after.before is current and after.address == current.address + current.size
                assert not (current.free and after.free), "free neighbours are joined"
                assert current.mapped or after.mapped, "so are gaps"
            current = after
    mapped = [block for block in blocks.values() if block.mapped]
    spans = sorted((block.address, block.address + block.size) for block in mapped)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert sum(end - start for start, end in spans) == device._taken_bytes
    assert {id(entry[2]) for entry in pool._free} == {id(block) for block in mapped if block.free}
    assert pool._free == sorted(pool._free, key=lambda entry: entry[:2])
    assert not any(block.free for block in held)


@pytest.mark.parametrize(
    ("num_bytes", "active", "reserved"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 11 * MIB + MIB, 12 * MIB),  # the rest of 1 MiB is not cut off
        (13 * MIB - MIB // 2, 14 * MIB - 3 * MIB // 2, 14 * MIB),
    ],
)
def test_sizes_of_segments(num_bytes: int, active: int, reserved: int) -> None:
    state = replay([(0, num_bytes)])
    assert (state.active_bytes, state.reserved_bytes) == (active, reserved)


def test_a_rest_of_the_large_pool_is_cut_off_only_above_one_mib() -> None:
    def in_use(size: int) -> int:
        return replay([(0, 20 * MIB), (0, 0), (1, size), (2, 512)]).active_bytes

    assert in_use(19 * MIB) == 20 * MIB + 512
    assert replay([(0, 20 * MIB), (0, 0), (1, 18 * MIB), (2, 2 * MIB)]).reserved_bytes == 20 * MIB
    assert replay([(0, 20 * MIB), (0, 0), (1, 19 * MIB), (2, 2 * MIB)]).reserved_bytes == 40 * MIB


def test_the_smallest_free_block_that_fits_is_taken() -> None:
    log = [(0, 40 * MIB), (1, 30 * MIB), (0, 0), (1, 0), (2, 29 * MIB), (3, 40 * MIB)]
    assert replay(log).reserved_bytes == 70 * MIB


def test_free_neighbours_serve_a_larger_request() -> None:
    thirds = [(number, 6 * MIB) for number in range(3)]
    assert replay([*thirds, (0, 0), (1, 0), (2, 0), (3, 20 * MIB)]).reserved_bytes == 20 * MIB
    assert replay([*thirds, (0, 0), (2, 0), (3, 12 * MIB)]).reserved_bytes == 32 * MIB


def test_cached_segments_are_given_back_before_it_is_out_of_memory() -> None:
    log = [(0, 30 * MIB), (0, 0), (1, 40 * MIB)]
    assert replay(log).reserved_bytes == 70 * MIB
    tight = replay(log, capacity_bytes=40 * MIB)
    assert (tight.fits, tight.num_retries, tight.reserved_bytes) == (True, 1, 40 * MIB)
    assert not replay(log, capacity_bytes=38 * MIB).fits
    assert smallest_capacity(log) == 40 * MIB


@pytest.mark.parametrize(("expandable", "reserved_mib"), [(False, 30), (True, 40)])
def test_what_one_stream_has_freed_serves_no_other_but_is_given_back_for_it(
    expandable: bool, reserved_mib: int
) -> None:
    log = [(0, 30 * MIB), (0, 0), (1, 30 * MIB)]
    replayed = partial(replay, log, expandable=expandable)
    assert replayed().reserved_bytes == replayed(streams={0: 1, 1: 1}).reserved_bytes == reserved_mib * MIB
    assert replayed(streams={0: 1}).reserved_bytes == replayed(streams={1: 2}).reserved_bytes == 2 * reserved_mib * MIB
    tight = replayed(streams={0: 1}, capacity_bytes=reserved_mib * MIB)
    assert (tight.fits, tight.num_retries, tight.reserved_bytes) == (True, 1, reserved_mib * MIB)
    assert smallest_capacity(log, streams={0: 1}, expandable=expandable) == reserved_mib * MIB


def test_what_lasts_on_one_stream_keeps_no_memory_of_another_from_being_given_back() -> None:
    log = [(0, 30 * MIB), (0, 0), (1, 10 * MIB), (2, 40 * MIB)]
    assert smallest_capacity(log) == 70 * MIB
    assert smallest_capacity(log, streams={1: 1}) == 50 * MIB


def test_a_segment_in_part_in_use_cannot_be_given_back() -> None:
    log = [(number, 6 * MIB) for number in range(3)] + [(0, 0), (2, 0), (3, 12 * MIB)]
    assert smallest_capacity(log) == 32 * MIB  # of which 18 are in use


def test_a_resized_buffer_has_both_blocks_for_a_moment() -> None:
    state = replay([(0, 10 * MIB), (0, 12 * MIB)])
    assert state.active_bytes == 22 * MIB


def test_an_expandable_segment_grows_by_pages_behind_what_is_free_at_its_end() -> None:
    log = [(number, 6 * MIB) for number in range(3)] + [(1, 0), (3, 12 * MIB)]
    assert replay(log, expandable=True).reserved_bytes == 40 * MIB  # 2 MiB of the first page, 10 of the second
    assert replay([(0, 30 * MIB), (1, 30 * MIB)], expandable=True).reserved_bytes == 60 * MIB
    assert replay([(0, 30 * MIB), (1, 30 * MIB)]).reserved_bytes == 60 * MIB


def test_an_expandable_segment_gives_back_pages_in_its_middle() -> None:
    log = [(number, 20 * MIB) for number in range(3)] + [(1, 0), (3, 512)]
    tight = replay(log, capacity_bytes=60 * MIB, expandable=True)
    assert (tight.fits, tight.num_retries, tight.active_bytes) == (True, 1, 60 * MIB)
    classic = [(0, 60 * MIB), (0, 0), (1, 20 * MIB), (2, 50 * MIB)]
    assert smallest_capacity(classic) == 110 * MIB
    assert smallest_capacity(classic, expandable=True) == 80 * MIB


def test_free_memory_that_can_grow_is_used_last() -> None:
    # 10 and 2 MiB leave 8 at the end; 7 go into the 10, so that 28 need one page more and not two.
    log = [(0, 10 * MIB), (1, 2 * MIB), (0, 0), (2, 7 * MIB), (3, 28 * MIB)]
    assert replay(log, expandable=True).reserved_bytes == 40 * MIB
