"""Every parameter that a candidate of a search space may have, and when it has it.

A slot has a flat name: ``lr``, ``layers`` (the number of blocks), ``layers.0.op``. Samplers and Optuna see flat
parameters; users and workloads see nested ones, where ``layers`` is a list of mappings.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from scamp_service.study.spaces.space import Categorical, Dimension, Ordinal, Range, Repeat
from scamp_service.study.values import Params, key_of

MAX_SLOTS = 500


@dataclass(frozen=True, slots=True)
class Need:
    """A condition on an earlier slot: its value is among ``keys`` (see ``key_of``), or greater than ``above``."""

    name: str
    keys: frozenset[Hashable] | None = None
    above: int = -1

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Whether it holds for these flat parameters. Without the other parameter it does not."""
        if self.name not in values:
            return False
        value = values[self.name]
        return value > self.above if self.keys is None else key_of(value) in self.keys


@dataclass(frozen=True, slots=True)
class Slot:
    """One flat parameter. ``path`` leads to it in nested ones; of ``is_count`` slots it leads to the list of blocks."""

    name: str
    path: tuple[str | int, ...]
    dimension: Categorical | Ordinal | Range
    needs: tuple[Need, ...] = ()
    is_count: bool = False

    def exists(self, values: Mapping[str, Any]) -> bool:
        """Whether a candidate with these flat parameters has it. Those that it depends on must be among them."""
        return all(need.holds(values) for need in self.needs)


def slots_of(space: Mapping[str, Dimension]) -> tuple[Slot, ...]:
    """The slots of a space: each after those that it depends on, otherwise in the order of the space.

    Raises ``ValueError`` for a condition that can never hold, and for more than ``MAX_SLOTS``.
    """
    slots: list[Slot] = []
    for slot in _slots(space, (), {}, ()):
        slots.append(slot)
        if len(slots) > MAX_SLOTS:
            raise ValueError(
                f"space has more than {MAX_SLOTS} parameters, those of every block counted; take fewer blocks"
            )
    return tuple(_sorted(slots))


def flat(slots: Sequence[Slot], params: Mapping[str, Any]) -> Params:
    """The flat parameters in nested ones. Other parameters are left out."""
    values = Params()
    for slot in slots:
        place: Any = params
        for step in slot.path:
            if isinstance(step, int) != isinstance(place, list) or not _has(place, step):
                break
            place = place[step]
        else:
            values[slot.name] = len(place) if slot.is_count else place
    return values


def nested(slots: Sequence[Slot], values: Mapping[str, Any], names: Sequence[str]) -> Params:
    """The nested parameters of a candidate, in the order of ``names``, from its flat ones."""
    params = Params()
    for slot in slots:
        if slot.name not in values:
            continue
        place: Any = params
        for step in slot.path[:-1]:
            place = place[step]
        value = values[slot.name]
        place[slot.path[-1]] = [{} for _ in range(value)] if slot.is_count else value
    return {name: params[name] for name in names if name in params}


def is_candidate(slots: Sequence[Slot], params: Mapping[str, Any]) -> bool:
    """Whether a space has these nested parameters: every one that exists with the others, with a value it may have."""
    values = flat(slots, params)
    return all(
        slot.name in values and not slot.dimension.why_not(values[slot.name]) for slot in slots if slot.exists(values)
    )


def existing_values(slots: Sequence[Slot], value_of: Callable[[Slot], Any]) -> Params:
    """Flat parameters of a candidate: the values of those slots that exist with the values before them."""
    values = Params()
    for slot in slots:
        if slot.exists(values):
            values[slot.name] = value_of(slot)
    return values


def _has(place: Any, step: str | int) -> bool:
    return 0 <= step < len(place) if isinstance(step, int) else isinstance(place, Mapping) and step in place


def _slots(
    space: Mapping[str, Dimension], path: tuple[str | int, ...], outer: Mapping[str, Slot], needs: tuple[Need, ...]
) -> Iterator[Slot]:
    """Slots of a mapping of dimensions at ``path``. A condition may name them, and those of ``outer`` around it."""
    where = ".".join(map(str, path))
    prefix = f"{where}." if where else ""
    inner = {name: Slot(prefix + name, (*path, name), _value_of(value), needs, True) for name, value in space.items()}
    all_slots = {**outer, **inner}
    for name, dimension in space.items():
        all_needs = (*needs, *_conditions(f"space.{prefix}{name}.when", dimension.when, all_slots))
        is_block = isinstance(dimension, Repeat)
        yield Slot(prefix + name, (*path, name), _value_of(dimension), all_needs, is_block)
        if isinstance(dimension, Repeat):
            for index in range(dimension.most):
                block = (*all_needs, Need(prefix + name, above=index))
                yield from _slots(dimension.each, (*path, name, index), all_slots, block)


def _value_of(dimension: Dimension) -> Categorical | Ordinal | Range:
    return dimension.repeat if isinstance(dimension, Repeat) else dimension


def _conditions(where: str, when: Mapping[str, Any], slots: Mapping[str, Slot]) -> Iterator[Need]:
    for name, values in when.items():
        if name not in slots:
            close = get_close_matches(name, slots, 1)
            hint = f"; did you mean {close[0]}?" if close else f", only {', '.join(list(slots)[:10])}"
            raise ValueError(f"{where}: there is no parameter {name!r} here{hint}")
        alternatives = values if isinstance(values, list) else [values]
        wrong = next(filter(None, map(slots[name].dimension.why_not, alternatives)), "")
        if wrong or not alternatives:
            raise ValueError(f"{where}.{name}: {wrong or 'lists no value'}")
        yield Need(slots[name].name, frozenset(map(key_of, alternatives)))


def _sorted(slots: Sequence[Slot]) -> Iterator[Slot]:
    waiting, names = list(slots), set[str]()
    while waiting:
        later = []
        for slot in waiting:
            if all(need.name in names for need in slot.needs):
                names.add(slot.name)
                yield slot
            else:
                later.append(slot)
        if len(later) == len(waiting):
            raise ValueError(f"space: {later[0].name} depends on itself by the conditions in when")
        waiting = later
