"""The points of a grid over a space, numbered: only those whose parameters exist together.

They are counted and found without listing them: a slot on which no later one depends multiplies what follows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scamp_service.study.spaces.slots import Slot
from scamp_service.study.values import Params, key_of


class Points:
    """All combinations of countable slots, in the order of ``itertools.product``.

    Counting stops being exact above ``most``: the answer is then a number above it.
    """

    def __init__(self, slots: Sequence[Slot], most: int = 2**62) -> None:
        self._slots, self._most = slots, most
        self._watched: list[tuple[str, ...]] = []  # names of earlier slots on which slot number i and later ones depend
        needed = set[str]()
        for slot in reversed(slots):
            needed = (needed - {slot.name}) | {need.name for need in slot.needs}
            self._watched.append(tuple(sorted(needed)))
        self._watched = [*reversed(self._watched), ()]
        self._known: dict[Any, int] = {}
        self._places: dict[int, dict[Any, int]] = {}

    @property
    def count(self) -> int:
        """The number of points."""
        return self._count(0, {})

    def point(self, number: int) -> Params:
        """Flat parameters of this point."""
        values = Params()
        for place, slot in enumerate(self._slots):
            if not slot.exists(values):
                continue
            if slot.name not in self._watched[place + 1]:
                index, number = divmod(number, self._count(place + 1, values))
                values[slot.name] = slot.dimension.value(index)
                continue
            for index in range(_size(slot)):
                values[slot.name] = slot.dimension.value(index)
                below = self._count(place + 1, values)
                if number < below:
                    break
                number -= below
        return values

    def number_of(self, values: Mapping[str, Any]) -> int | None:
        """Number of the point with these flat parameters; None if they are not on the grid."""
        number, before = 0, Params()
        for place, slot in enumerate(self._slots):
            if not slot.exists(before):
                if slot.name in values:
                    return None
                continue
            index = self._indices(place).get(key_of(values[slot.name])) if slot.name in values else None
            if index is None:
                return None
            if slot.name not in self._watched[place + 1]:
                before[slot.name] = values[slot.name]
                number += index * self._count(place + 1, before)
                continue
            for smaller in range(index):
                number += self._count(place + 1, {**before, slot.name: slot.dimension.value(smaller)})
            before[slot.name] = values[slot.name]
        return number

    def _indices(self, place: int) -> dict[Any, int]:
        if place not in self._places:
            slot = self._slots[place]
            self._places[place] = {key_of(slot.dimension.value(index)): index for index in range(_size(slot))}
        return self._places[place]

    def _count(self, index: int, values: Mapping[str, Any]) -> int:
        """Points of slot number ``index`` and later ones, with these values of earlier ones."""
        if index == len(self._slots):
            return 1
        watched = tuple(key_of(values[name]) if name in values else None for name in self._watched[index])
        count = self._known.get((index, watched))
        if count is None:
            count = self._known[index, watched] = self._counted(index, values)
        return count

    def _counted(self, place: int, values: Mapping[str, Any]) -> int:
        slot = self._slots[place]
        if not slot.exists(values):
            return self._count(place + 1, values)
        size = _size(slot)
        if slot.name not in self._watched[place + 1]:
            return size * self._count(place + 1, values)
        if size > self._most:
            return size
        total = 0
        for index in range(size):
            total += self._count(place + 1, {**values, slot.name: slot.dimension.value(index)})
            if total > self._most:
                break
        return total


def _size(slot: Slot) -> int:
    size = slot.dimension.num_values
    assert size is not None, "the spec refuses a grid over a continuous range"
    return size
