"""The few moments of a step at which memory may peak, whatever the sizes and the depth of an architecture.

Logs hold size classes instead of bytes here: the memory alive at a moment is a number of buffers of each class. A
moment is left out if another moment has at least as many buffers of every class, because it cannot be the peak alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from estimators.peaks.depth import TRACED_BLOCKS, Passes, stretch
from estimators.scaling.example import NoBlueprint
from estimators.scaling.formula import Whole

Rows = npt.NDArray[np.int64]
"""Number of buffers alive [moments, size classes]."""
Table = tuple[tuple[int, ...], ...]
"""Moments as plain values, as they are stored."""

LEAST_DEPTH = 2
"""The fewest blocks: a first and a last one."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Moments at which memory may peak, as numbers of buffers of each size class.

    ``base`` counts them for ``LEAST_DEPTH`` blocks, and each further block adds ``per_block``. ``inner`` marks the
    moments in blocks between the first and the last.
    """

    base: Table
    per_block: Table
    inner: tuple[bool, ...]

    def __post_init__(self) -> None:
        lengths = {len(self.base), len(self.per_block), len(self.inner)}
        if len(lengths) > 1 or len({len(row) for row in self.base + self.per_block}) > 1:
            raise ValueError("both tables of moments must have the same shape, with a flag for each row")

    @classmethod
    def of(cls, base: Rows, per_block: Rows, inner: npt.ArrayLike) -> Moments:
        """The moments of these arrays."""
        first, further = (tuple(map(tuple, rows.tolist())) for rows in (base, per_block))
        return cls(first, further, tuple(np.asarray(inner).tolist()))

    def bytes(self, sizes: npt.NDArray[np.float64], depth: Whole) -> npt.NDArray[np.float64]:
        """Bytes alive [moments, architectures], for ``sizes`` [classes, architectures] and ``depth`` [architectures].

        Exact, because all are whole numbers below 2**53. 0 for moments that an architecture does not have.
        """
        further = (depth - LEAST_DEPTH).astype(np.float64)
        base, per_block = (np.array(rows, dtype=np.float64) for rows in (self.base, self.per_block))
        alive = base @ sizes + (per_block @ sizes) * further
        alive[np.ix_(self.inner, further == 0)] = 0
        return alive

    def peak(self, sizes: npt.NDArray[np.float64], depth: int) -> tuple[float, npt.NDArray[np.float64]]:
        """(bytes, numbers of buffers by class) of the first moment with the most bytes, for one architecture."""
        further = float(depth - LEAST_DEPTH)
        base, per_block = (np.array(rows, dtype=np.float64) for rows in (self.base, self.per_block))
        counts = base + per_block * further
        alive = counts @ sizes
        if not further:
            alive[np.array(self.inner)] = 0
        place = int(alive.argmax())
        return float(alive[place]), counts[place]

    def plus(self, other: Moments) -> Moments:
        """Adds the buffers of the only moment of ``other`` alive as well."""
        return Moments.of(np.add(self.base, other.base), np.add(self.per_block, other.per_block), self.inner)

    def only(self, classes: npt.ArrayLike) -> Moments:
        """Keeps the buffers of these size classes alone."""
        return Moments.of(np.multiply(self.base, classes), np.multiply(self.per_block, classes), self.inner)


def moments_of(passes: Passes, num: int) -> tuple[Moments, Moments]:
    """All moments of the passes that may be the peak, and the last moment; ``num`` is the number of size classes.

    The first two and the last two blocks, and the parts outside of the blocks, have the same events for any number of
    blocks, and the buffers alive then grow evenly with that number. From block to block in between, they grow or fall
    evenly too, so no block there needs more than the larger of the two ends.
    """
    by_depth = []
    for depth in range(6, 9):
        longer = stretch(passes, depth)
        if longer is None:
            raise NoBlueprint("the blocks do not all do the same")
        by_depth.append(_by_role(longer, depth, _alive(longer, num)))
    (first, inner), (second, _), (third, _) = by_depth
    if not first.shape == second.shape == third.shape or np.any(third - second != second - first):
        raise NoBlueprint("the memory alive does not grow evenly with the number of blocks")
    per_block = second - first
    everything = Moments.of(first - (6 - LEAST_DEPTH) * per_block, per_block, inner)
    return everything, Moments(everything.base[-1:], everything.per_block[-1:], (False,))


def of_whole(passes: Passes, num: int) -> tuple[Moments, Moments]:
    """Like ``moments_of``, for passes of a whole model, whose number of blocks is always the same."""
    alive = _alive(passes, num)[max(0, passes.num_before - 1) :]
    everything = Moments.of(alive, np.zeros_like(alive), np.zeros(len(alive), dtype=np.bool_))
    return everything, Moments(everything.base[-1:], everything.per_block[-1:], (False,))


def optimizer_states(few: Passes, more: Passes, num: int) -> Moments:
    """The optimizer's states as one moment, from updates of ``TRACED_BLOCKS`` blocks and of one more."""

    def row(update: Passes) -> Rows:
        held = dict(update.events)
        codes = [code for buffer, code in held.items() if code and update.categories[buffer] == "optimizer"]
        return np.bincount(codes, minlength=num + 1)[None, 1:]

    return _even(row(few), row(more))


def of_update(few: Passes, more: Passes, num: int) -> Moments:
    """Moments at which an update may peak, from updates of ``TRACED_BLOCKS`` blocks and of one more.

    Raises ``NoBlueprint`` if their moments do not match.
    """
    rows = [_maximal(_alive(update, num)) for update in (few, more)]
    if len(rows[0]) != len(rows[1]):
        raise NoBlueprint("the optimizer's memory does not grow evenly with the number of blocks")
    return _even(*rows)


def joined(moments: Sequence[Moments]) -> Moments:
    """All moments in one table."""
    return Moments(
        tuple(row for moment in moments for row in moment.base),
        tuple(row for moment in moments for row in moment.per_block),
        tuple(flag for moment in moments for flag in moment.inner),
    )


def undominated(moments: Moments) -> Moments:
    """The moments without those that never need more than another one, whatever the sizes and the depth.

    Moments of inner blocks are compared only with each other. An architecture without inner blocks does not have them,
    so they must not hide others.
    """
    rows = np.concatenate([moments.base, moments.per_block], axis=1)
    parts = [_maximal(rows[np.equal(moments.inner, inner)]) for inner in (False, True)]
    base, per_block = np.split(np.concatenate(parts), 2, axis=1)
    return Moments.of(base, per_block, np.repeat([False, True], [len(part) for part in parts]))


def _by_role(passes: Passes, depth: int, alive: Rows) -> tuple[Rows, npt.NDArray[np.bool_]]:
    """The rows in the first two and the last two blocks and outside of the blocks; and which of them are in inner
    blocks (the second, and the last but one)."""
    start = max(0, passes.num_before - 1)
    bounds = [(start, None), *((position, block) for position, block, _ in passes.marks), (len(alive), None)]
    rows, inner = [], []
    for (begin, block), (end, _) in pairwise(bounds):
        if block is None or block not in range(2, depth - 2):
            rows.append(alive[begin:end])
            inner += [block in (1, depth - 2)] * (end - begin)
    return np.concatenate(rows), np.array(inner)


def _alive(passes: Passes, num: int) -> Rows:
    """Number of buffers alive after each event [events, classes]."""
    changes = np.zeros((len(passes.events), num + 1), dtype=np.int64)
    held: dict[int, int] = {}
    for position, (buffer, code) in enumerate(passes.events):
        changes[position, held.get(buffer, 0)] -= 1
        changes[position, code] += 1
        held[buffer] = code
    return np.cumsum(changes, axis=0)[:, 1:]


def _even(few: Rows, more: Rows) -> Moments:
    """Moments from rows for ``TRACED_BLOCKS`` blocks, and for one more."""
    per_block = more - few
    return Moments.of(few - (TRACED_BLOCKS - LEAST_DEPTH) * per_block, per_block, np.zeros(len(few), dtype=np.bool_))


def _maximal(rows: Rows) -> Rows:
    """The different rows, in order, without those that another row equals or exceeds in every column."""
    different = list(dict.fromkeys(map(tuple, rows.tolist())))
    rows = np.array(different, dtype=np.int64).reshape(len(different), rows.shape[1])
    maximal = np.empty((0, rows.shape[1]), dtype=np.int64)
    places = []
    for index in np.argsort(-rows.sum(axis=1), kind="stable").tolist():
        if not np.any(np.all(maximal >= rows[index], axis=1)):
            maximal = np.concatenate([maximal, rows[index : index + 1]])
            places.append(index)
    return rows[sorted(places)]
