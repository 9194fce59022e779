"""Rules for the parameters of candidates: those that are fixed, given to try first, constrained, or read by ScaMP."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from scamp.shown import first_names
from scamp_service.study.rules.fields import Fields
from scamp_service.study.rules.starts import start_complaints
from scamp_service.study.spaces.constraints import ParameterConstraints
from scamp_service.study.spaces.slots import Slot, existing_values, flat, nested
from scamp_service.study.spaces.space import Repeat, ends
from workloads.batch import BOUNDS, LARGEST, wrong_batch
from workloads.options import (
    BOTH_AVERAGES,
    BOTH_SCALINGS,
    NEEDS_ADASCALE,
    NEEDS_AVERAGES,
    NEEDS_BASE,
    NEEDS_EMA,
    wrong_value,
)
from workloads.options import NAMES as OPTIONS


def constraint_complaints(study: Fields, slots: tuple[Slot, ...], constraints: ParameterConstraints) -> Iterator[str]:
    """Mistakes in the constraints: unknown parameters, and expressions that do not suit the types of the known ones."""
    names = {*study.space, *study.fixed}
    for name in sorted(constraints.names - names):
        close = get_close_matches(name, names, 1, 0.5)
        hint = f"; did you mean {close[0]}?" if close else ""
        yield f"constraints name {name!r}, which neither space nor fixed defines{hint}"
    if not constraints:
        return
    for end in (0, -1):  # two candidates, to see that the expressions suit the types of the parameters
        values = existing_values(slots, lambda slot, end=end: ends(slot.dimension)[end])  # type: ignore[misc]
        try:
            constraints.check({**study.fixed, **nested(slots, values, list(study.space))})
        except ValueError as error:
            yield str(error)


def given_start_complaints(
    study: Fields, where: str, start: Mapping[str, Any], slots: tuple[Slot, ...], constraints: ParameterConstraints
) -> Iterator[str]:
    """Mistakes in the candidate of ``start_with`` at ``where``."""
    unknown = sorted(set(start) - set(study.space) - set(study.fixed))
    if unknown:
        yield f"{where} has {first_names(unknown)}, which neither space nor fixed defines"
    wrong = list(start_complaints(where, start, study.space, slots))
    yield from wrong
    if not wrong and not unknown:
        flat_start = flat(slots, start)
        complete = {name for name in start if _is_complete(name, slots, flat_start)}
        values = {name: value for name, value in {**study.fixed, **start}.items() if name in {*complete, *study.fixed}}
        if broken := constraints.broken(values):
            yield f"{where} does not satisfy the constraint {broken[0].source!r}"


def _is_complete(name: str, slots: tuple[Slot, ...], flat_start: Mapping[str, Any]) -> bool:
    """Whether a start gives every value of this parameter, which may be a list of blocks."""
    inner = (slot for slot in slots if slot.path[0] == name)
    return all(slot.name in flat_start for slot in inner if slot.exists(flat_start))


def batch_complaints(study: Fields) -> Iterator[str]:
    """Check ``batch``, the number of samples of a step, and the bounds between which ScaMP may choose or change it."""
    batches, scalings = _values_of(study, "batch"), _values_of(study, "scale_lr")
    yield from filter(None, map(wrong_batch, batches))
    smallest, largest = (_values_of(study, name) for name in BOUNDS)
    chosen, numbers = LARGEST in batches, [value for value in batches if isinstance(value, int)]
    if (smallest or largest) and not chosen and "adascale" not in scalings:
        yield NEEDS_ADASCALE
    if "adascale" in scalings and (chosen or smallest) and not _values_of(study, "base_batch"):
        yield NEEDS_BASE
    if chosen and study.plan is not None:
        yield "batch: largest and plan both say how large the batch is: keep one"
    if largest and not chosen and max(largest) < min(numbers, default=0):
        yield f"largest_batch ({max(largest)}) is smaller than every batch of the study: no batch would grow"
    if smallest and not chosen and min(smallest) > max(numbers, default=min(smallest)):
        yield f"smallest_batch ({min(smallest)}) is larger than every batch of the study: no batch would shrink"
    for name, least in (("smallest_batch", smallest), ("base_batch", _values_of(study, "base_batch"))):
        if largest and least and max(largest) < min(least):
            yield f"largest_batch ({max(largest)}) is smaller than {name} ({min(least)})"


def option_complaints(study: Fields) -> Iterator[str]:
    """Check the other parameters that ScaMP itself reads."""
    for name in OPTIONS:
        yield from filter(None, (wrong_value(name, value) for value in _values_of(study, name)))
    for start in _values_of(study, "swa_start"):
        if start is not None and study.budget.epochs is None and start >= study.budget.length:
            yield f"swa_start ({start}) must be less than budget.steps ({study.budget.length}): it averages nothing"
    if {*_values_of(study, "reduce")} == {"adasum"} and {*_values_of(study, "scale_lr")} == {"adascale"}:
        yield BOTH_SCALINGS
    averages = {name for name in ("ema_decay", "swa_start") if _values_of(study, name)}
    if any(value not in ("none", None) for value in _values_of(study, "ema_warmup")) and "ema_decay" not in averages:
        yield NEEDS_EMA
    if True in _values_of(study, "average_buffers") and not averages:
        yield NEEDS_AVERAGES
    if {"ema_decay", "swa_start"} <= study.fixed.keys():
        yield BOTH_AVERAGES


def _values_of(study: Fields, name: str) -> list[Any]:
    """Values that candidates have of a parameter: those that the study names, and the ends of a range."""
    values: list[Any] = [candidate[name] for candidate in (study.fixed, *study.start_with) if name in candidate]
    dimension = study.space.get(name)
    if isinstance(dimension, Repeat):
        values.append([])
    elif dimension is not None:
        values += ends(dimension)
    return values
