"""Checks the candidates that a user asks for: values, repeated blocks, and parameters that exist under a condition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from scamp_service.study.spaces.slots import Slot, flat
from scamp_service.study.spaces.space import Dimension, Repeat


def start_complaints(
    where: str, start: Mapping[str, Any], space: Mapping[str, Dimension], slots: tuple[Slot, ...]
) -> Iterator[str]:
    """Mistakes in the searched parameters of a candidate, which may leave some out."""
    wrong = list(_wrong_values(where, start, space))
    yield from wrong
    if wrong:
        return
    flat_start = flat(slots, start)
    for slot in slots:
        if slot.name in flat_start:
            broken = next((need for need in slot.needs if not need.holds(flat_start)), None)
            if broken is not None:
                has = f"has as {flat_start[broken.name]!r}" if broken.name in flat_start else "does not give"
                yield f"{where}.{slot.name} exists only with some values of {broken.name}, which this candidate {has}"


def _wrong_values(where: str, flat_start: Mapping[str, Any], space: Mapping[str, Dimension]) -> Iterator[str]:
    for name, value in flat_start.items():
        match space.get(name):
            case None:
                pass
            case Repeat() as block:
                yield from _wrong_blocks(f"{where}.{name}", value, block)
            case dimension:
                if wrong := dimension.why_not(value):
                    yield f"{where}.{name}: {wrong}"


def _wrong_blocks(where: str, value: Any, block: Repeat) -> Iterator[str]:
    if not isinstance(value, list) or not all(isinstance(block, Mapping) for block in value):
        yield f"{where}: must be a list with a mapping of {', '.join(block.each)} for each block"
        return
    if wrong := block.repeat.why_not(len(value)):
        yield f"{where}: the number of blocks: {wrong}"
        return
    for index, block_params in enumerate(value):
        unknown = next((name for name in block_params if name not in block.each), None)
        if unknown is not None:
            yield f"{where}[{index}] has {unknown!r}; a block has {', '.join(block.each)}"
        yield from _wrong_values(f"{where}[{index}]", block_params, block.each)
