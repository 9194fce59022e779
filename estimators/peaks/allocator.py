"""Replays PyTorch's CUDA caching allocator: the memory it takes for a log of buffers, and which capacity is enough.

The replay follows its rules with default settings, for classic and for expandable segments. Free memory serves only
requests on the stream that it was taken for. When the device has no more memory, the free memory of all streams is
given back to it. Left out are ``record_stream``, CUDA graphs, ``max_split_size_mb`` and the like, and the addresses
that the driver returns: new segments are assumed to lie above older ones, which only decides between free blocks of
equal size.

The rules are those of ``c10/cuda/CUDACachingAllocator.cpp`` and the constants those of ``c10/core/AllocatorConfig.h``.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass

from estimators.model import MIB
from estimators.peaks.envelope import EventLog

_ROUNDED_TO = 512  # bytes: every size is rounded up to a multiple of it
_LARGEST_SMALL = 1 * MIB  # requests up to this size use the small pool
_SMALL_SEGMENT = 2 * MIB
_LARGE_SEGMENT = 20 * MIB  # shared by requests of the large pool that are smaller than the next line
_OWN_SEGMENT_FROM = 10 * MIB
GRANULE = 2 * MIB
"""Memory is taken from a device in multiples of this many bytes."""

_ENDLESS = 2**60  # bytes of addresses: more than any device maps
_UNLIMITED = 2**62
_ONE_STREAM: Mapping[int, int] = {}


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of a replay.

    ``active_bytes`` is the peak of the bytes in use, each buffer rounded up to its block. ``reserved_bytes`` is the
    peak of the bytes taken from the device. ``fits`` is False if the log ended in an out-of-memory; the peaks are then
    those up to that point. ``num_retries`` counts how often cached memory was given back to make room.
    """

    active_bytes: int
    reserved_bytes: int
    num_retries: int
    fits: bool


def replay(
    log: EventLog,
    *,
    streams: Mapping[int, int] = _ONE_STREAM,
    capacity_bytes: int = _UNLIMITED,
    expandable: bool = False,
) -> Replay:
    """Serve ``log`` on a device that offers ``capacity_bytes`` to the allocator.

    ``streams`` maps a buffer to the stream on which it is allocated, unless that is 0. A buffer that is resized gets
    its new block before its old one is freed, as in ``UntypedStorage.resize_``.
    """
    device = _Device(capacity_bytes)
    make = _ExpandablePool if expandable else _Pool
    pools = {stream: (make(device, small=False), make(device, small=True)) for stream in {0, *streams.values()}}
    held: dict[int, _Block] = {}
    active = peak = num_retries = 0
    for buffer, num_bytes in log:
        old = held.pop(buffer, None)
        if num_bytes:
            size = -(-num_bytes // _ROUNDED_TO) * _ROUNDED_TO
            pool = pools[streams.get(buffer, 0)][size <= _LARGEST_SMALL]
            block = pool.allocate(size)
            if block is None:
                num_retries += 1
                for large, small in pools.values():
                    large.release()
                    small.release()
                block = pool.allocate(size)
                if block is None:
                    return Replay(peak, device.peak_bytes, num_retries, fits=False)
            held[buffer] = block
            active += block.size
            if active > peak:
                peak = active
        if old is not None:
            active -= old.size
            old.pool.free(old)
    return Replay(peak, device.peak_bytes, num_retries, fits=True)


def smallest_capacity(log: EventLog, *, streams: Mapping[int, int] = _ONE_STREAM, expandable: bool = False) -> int:
    """The fewest bytes that a device must offer to the allocator: with one ``GRANULE`` less the log does not fit.

    Found by bisection over replays, between the bytes in use and the bytes that would be reserved without a limit.
    Under pressure the allocator gives cached memory back, so it needs less than it would reserve. In theory a larger
    device might do worse, because other blocks are split there: call ``replay`` to be certain about a given capacity.
    """
    unlimited = replay(log, streams=streams, expandable=expandable)
    too_small = (-(-unlimited.active_bytes // GRANULE) - 1) * GRANULE
    enough = unlimited.reserved_bytes
    while enough - too_small > GRANULE:
        middle = (too_small + enough) // (2 * GRANULE) * GRANULE
        if replay(log, streams=streams, capacity_bytes=middle, expandable=expandable).fits:
            enough = middle
        else:
            too_small = middle
    return enough


class _Device:
    __slots__ = ("_capacity_bytes", "_taken_bytes", "_top", "peak_bytes")

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._taken_bytes = self._top = self.peak_bytes = 0

    def take(self, num_bytes: int) -> bool:
        """Take memory from the device; False if so much is not left."""
        if self._taken_bytes + num_bytes > self._capacity_bytes:
            return False
        self._taken_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self._taken_bytes)
        return True

    def give_back(self, num_bytes: int) -> None:
        self._taken_bytes -= num_bytes

    def addresses(self, num_bytes: int) -> int:
        """The first of ``num_bytes`` addresses that nothing else uses."""
        self._top += num_bytes
        return self._top - num_bytes


class _Block:
    """A piece of a segment, with its neighbours there. Blocks that are ``free`` are in the list of their pool."""

    __slots__ = ("address", "after", "before", "free", "mapped", "pool", "size")

    def __init__(self, pool: _Pool, address: int, size: int) -> None:
        self.pool, self.address, self.size = pool, address, size
        self.before: _Block | None = None
        self.after: _Block | None = None
        self.free, self.mapped = False, True


class _Pool:
    """Classic segments: taken from the device one by one, and given back only when they are wholly free."""

    def __init__(self, device: _Device, *, small: bool) -> None:
        self._device = device
        self._segment_bytes = _SMALL_SEGMENT if small else _LARGE_SEGMENT
        # A remainder smaller than this does not become a block of its own: it stays with the request.
        self._least_rest = _ROUNDED_TO if small else _LARGEST_SMALL + _ROUNDED_TO
        self._free: list[tuple[int, int, _Block]] = []  # (size, address, block), ascending

    def allocate(self, size: int) -> _Block | None:
        """The best-fitting free block or a new one, cut to size; None if the device has too little memory left."""
        place = bisect_left(self._free, (size,))
        block = self._take(place) if place < len(self._free) else self._grow(size)
        if block is None:
            return None
        block.free = False
        if block.size - size >= self._least_rest:
            self._put(self._cut(block, size))
        return block

    def free(self, block: _Block) -> _Block:
        """Put the block back in the list, merged with its free neighbours; returns the merged block."""
        before, after = block.before, block.after
        if after is not None and after.free:
            self._remove(after)
            _join(block, after)
        if before is not None and before.free:
            self._remove(before)
            _join(before, block)
            block = before
        self._put(block)
        return block

    def release(self) -> None:
        """Give back to the device all memory that can be given back."""
        unsplit = [entry for entry in self._free if entry[2].before is None and entry[2].after is None]
        if unsplit:
            self._free = [entry for entry in self._free if entry[2].before is not None or entry[2].after is not None]
            self._device.give_back(sum(size for size, _, _ in unsplit))

    def _grow(self, size: int) -> _Block | None:
        rounded = -(-size // GRANULE) * GRANULE
        num_bytes = rounded if size >= _OWN_SEGMENT_FROM else self._segment_bytes
        if not self._device.take(num_bytes):
            return None
        return _Block(self, self._device.addresses(num_bytes), num_bytes)

    def _take(self, index: int) -> _Block:
        return self._free.pop(index)[2]

    def _put(self, block: _Block) -> None:
        block.free = True
        insort(self._free, (block.size, block.address, block))

    def _remove(self, block: _Block) -> None:
        del self._free[bisect_left(self._free, (block.size, block.address))]

    def _cut(self, block: _Block, size: int) -> _Block:
        """Cut the block down to ``size``; returns the remainder."""
        rest = _Block(self, block.address + size, block.size - size)
        rest.before, rest.after = block, block.after
        if rest.after is not None:
            rest.after.before = rest
        block.after, block.size = rest, size
        return rest


def _join(block: _Block, after: _Block) -> None:
    block.size += after.size
    block.after = after.after
    if block.after is not None:
        block.after.before = block


class _ExpandablePool(_Pool):
    """One segment over the whole address range, whose pages are mapped on demand and unmapped under pressure."""

    def __init__(self, device: _Device, *, small: bool) -> None:
        super().__init__(device, small=small)
        self._least_rest = _ROUNDED_TO
        everything = _Block(self, 0, _ENDLESS // self._segment_bytes * self._segment_bytes)
        everything.mapped = False
        self._unmapped = [(0, everything)]  # (address, block), ascending

    def release(self) -> None:
        for _, _, block in list(self._free):
            self._unmap(block)

    def _take(self, place: int) -> _Block:
        # A block that can grow is compared by the size that it could reach, so that others are used up before it.
        free = self._free
        while place + 1 < len(free) and _room(free[place + 1][2]) < _room(free[place][2]):
            place += 1
        return free.pop(place)[2]

    def _grow(self, size: int) -> _Block | None:
        """A free block of at least ``size``, at the lowest address where enough pages can be mapped."""
        block = self._lowest_gap(size)
        if not block.mapped:
            mapped = self._map(block, min(block.size, size))
            if mapped is None:
                return None
            block = mapped
        while block.size < size:
            gap = block.after
            assert gap is not None and not gap.mapped
            mapped = self._map(gap, min(size - block.size, gap.size))
            if mapped is None:
                return None
            block = mapped
        self._remove(block)
        return block

    def _lowest_gap(self, size: int) -> _Block:
        for _, gap in self._unmapped:
            first = gap.before if gap.before is not None and gap.before.free else gap
            room, block = 0, first
            while room < size and (block.free or not block.mapped):
                room += block.size
                if block.after is None:
                    break
                block = block.after
            if room >= size:
                return first
        raise AssertionError("the last gap has no end")

    def _map(self, gap: _Block, num_bytes: int) -> _Block | None:
        """Map whole pages from the start of a gap; returns the free block that they are now part of."""
        page = self._segment_bytes
        num_bytes = -(-num_bytes // page) * page
        if not self._device.take(num_bytes):
            return None
        self._forget(gap)
        if num_bytes < gap.size:
            rest = self._cut(gap, num_bytes)
            rest.mapped = False
            insort(self._unmapped, (rest.address, rest))
        gap.mapped = True
        return self.free(gap)

    def _unmap(self, block: _Block) -> None:
        """Unmap the pages that lie wholly in a free block."""
        page = self._segment_bytes
        start = -(-block.address // page) * page
        end = (block.address + block.size) // page * page
        if start >= end:
            return
        self._remove(block)
        block.free = False
        self._device.give_back(end - start)
        gap = self._cut(block, start - block.address) if start > block.address else block
        if start > block.address:
            self._put(block)
        if end < gap.address + gap.size:
            self._put(self._cut(gap, end - gap.address))
        gap.mapped = False
        if gap.after is not None and not gap.after.mapped:
            self._forget(gap.after)
            _join(gap, gap.after)
        if gap.before is not None and not gap.before.mapped:
            self._forget(gap.before)
            gap = gap.before
            assert gap.after is not None
            _join(gap, gap.after)
        insort(self._unmapped, (gap.address, gap))

    def _forget(self, gap: _Block) -> None:
        del self._unmapped[bisect_left(self._unmapped, (gap.address,))]


def _room(block: _Block) -> int:
    """Bytes of a block, plus those that could be mapped directly behind it."""
    return block.size + (block.after.size if block.after is not None and not block.after.mapped else 0)
