"""Chooses trials by an expression such as ``lr < 1e-3 and depth == 2 and state == COMPLETED``.

It is CEL (``study.spaces.expression``), which cannot run code. ``and``, ``or``, ``not`` and a single ``=`` may be
written as well. Names are those of parameters, of ``QUANTITIES``, of measured objectives and of states.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import repeat
from typing import Any

from estimators.model import MIB
from scamp_service.errors import InvalidInput
from scamp_service.lifecycle import Origin, TrialState
from scamp_service.model import Sized
from scamp_service.study.objectives import Objectives
from scamp_service.study.spaces.expression import Expression

_TOKENS = re.compile(
    r"""(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|(?P<word>\b(?:and|or|not|AND|OR|NOT|True|False|None)\b)"""
    r"""|(?P<equal>(?<![=!<>])=(?!=))"""
)
_AS_CEL = {"and": "&&", "or": "||", "not": "!", "true": "true", "false": "false", "none": "null"}


@dataclass(frozen=True, slots=True)
class Quantity:
    """A property of a trial, from columns of the table of trials; None while it has none."""

    columns: tuple[str, ...]
    value: Callable[..., Any]


def _as_it_is(value: Any) -> Any:
    return value


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def _mib(num_bytes: int) -> float | None:
    return num_bytes / MIB or None


def _of_sized(value: Callable[[Sized], Any]) -> Quantity:
    return Quantity(("sized",), lambda sized: value(sized) if sized else None)


QUANTITIES: Mapping[str, Quantity] = {
    "number": Quantity(("number",), _as_it_is),
    "state": Quantity(("state",), str),
    "origin": Quantity(("origin",), str),
    "value": Quantity(("value",), _finite),
    "step": Quantity(("step",), _as_it_is),
    "attempts": Quantity(("attempt",), _as_it_is),
    "oom": Quantity(("num_oom",), _as_it_is),
    "parent": Quantity(("parent_number",), _as_it_is),
    "reason": Quantity(("reason",), _as_it_is),
    "ranks": _of_sized(lambda sized: sized.plan.world_size),
    "batch": _of_sized(lambda sized: sized.plan.batch),
    "micro_batch": _of_sized(lambda sized: sized.plan.micro_batch),
    "recompute": _of_sized(lambda sized: sized.plan.recompute),
    "values": Quantity(("values",), lambda values: None if values is None else list(map(_finite, values))),
    "flops": _of_sized(lambda sized: sized.flops_per_sample),
    "num_params": _of_sized(lambda sized: sized.num_params or None),
    "predicted_mib": _of_sized(lambda sized: _mib(sized.prediction.expected_bytes)),
    "measured_mib": Quantity(("measured_bytes",), _mib),
    "reserved_mib": _of_sized(lambda sized: sized.prediction.reserved_mib or None),
    "step_seconds": Quantity(("measured_step_seconds",), _as_it_is),
    "seconds": Quantity(
        ("started_at", "finished_at"), lambda start, end: None if start is None or end is None else end - start
    ),
}
"""Properties of a trial by their names in expressions. A parameter with the same name takes precedence; ``trial.value``
is the property all the same, and ``params.value`` the parameter."""
CONSTANTS = {str(word): str(word) for word in (*TrialState, *Origin)}


def objective_quantities(objectives: Objectives) -> dict[str, Quantity]:
    """The measured objectives of a study by their metrics, such as ``accuracy``."""
    if not objectives.has_several:
        return {objectives.leading.metric: QUANTITIES["value"]}
    return {
        objective.metric: _of_values(index)
        for index, objective in enumerate(objectives.items)
        if not objective.predicted
    }


def _of_values(index: int) -> Quantity:
    return Quantity(("values",), lambda values: _finite(values[index]) if values else None)


class TrialFilter:
    """A compiled expression. Raises ``InvalidInput`` if it is not valid.

    ``metrics`` are further properties of a trial: see ``objective_quantities``. ``parameters`` are those of the study;
    None where only its trials say which there are.
    """

    def __init__(
        self,
        source: str,
        metrics: Mapping[str, Quantity] | None = None,
        parameters: Collection[str] | None = None,
    ) -> None:
        self._source = source
        self._known = {**(metrics or {}), **QUANTITIES}
        try:
            self._expression = Expression(_TOKENS.sub(_as_cel, source))
        except ValueError as error:
            raise self._wrong(str(error)) from None
        words = set(re.findall(r"\w+", source))  # more than its names: it may say ``trial.value``
        self._quantities = {name: quantity for name, quantity in self._known.items() if name in words}
        used = (column for quantity in self._quantities.values() for column in quantity.columns)
        self._parameters = parameters or ()
        properties = {*self._quantities, *CONSTANTS}.difference(self._parameters)
        params = [] if parameters is not None and self._expression.names <= properties else ["params"]
        self.columns: tuple[str, ...] = tuple(dict.fromkeys(("number", *params, *used)))
        """Columns of the table of trials that it reads."""

    def matches(self, columns: Mapping[str, Sequence[Any]]) -> list[bool]:
        """Whether each trial is chosen. Item i of each of the ``columns`` belongs to the same trial.

        A trial without a parameter has null there. One for which the expression has no value is not chosen. Raises
        ``InvalidInput`` for an unknown name, and where it has no value, or none that is true or false, for any trial.
        """
        parameters = {*self._parameters, *(name for params in columns.get("params", ()) for name in params)}
        self._check_names(parameters)
        is_kept = list[bool]()
        trouble, worked = "", False
        names = ("", *self._expression.names)  # the first, which no expression has, counts the trials
        parts = [columns["number"], *(self._part(name, columns, parameters) for name in names[1:])]
        evaluate = self._expression.for_many(names)
        for part in zip(*parts, strict=False):  # that of a constant has no end
            values = dict(zip(names, part, strict=True))
            try:
                result = evaluate(values)
            except ValueError as error:
                if None not in part:
                    trouble = trouble or str(error)
                is_kept.append(False)
                continue
            worked = True
            if not isinstance(result, bool):
                raise self._wrong(f"gives {result!r}, not true or false")
            is_kept.append(result)
        if trouble and not worked:
            raise self._wrong(f"has no value: {trouble}")
        return is_kept

    def _part(self, name: str, columns: Mapping[str, Sequence[Any]], parameters: Collection[str]) -> Iterable[Any]:
        """The value of a name for each trial."""
        if name in parameters:
            return [params.get(name) for params in columns["params"]]
        if name in self._quantities:
            return self._quantity(name, columns)
        if name == "params":
            return columns["params"]
        if name == "trial":
            each = [self._quantity(quantity, columns) for quantity in self._quantities]
            values: Iterable[tuple[Any, ...]] = zip(*each, strict=True) if each else repeat(())
            return (dict(zip(self._quantities, row, strict=True)) for row in values)
        return repeat(CONSTANTS[name])

    def _quantity(self, name: str, columns: Mapping[str, Sequence[Any]]) -> Iterable[Any]:
        quantity = self._quantities[name]
        return map(quantity.value, *(columns[column] for column in quantity.columns))

    def _check_names(self, parameters: Iterable[str]) -> None:
        names = {*parameters, *self._known, *CONSTANTS, "params", "trial"}
        for name in sorted(self._expression.names - names):
            close = get_close_matches(name, names, 1, 0.7)
            hint = f"did you mean {close[0]}?" if close else f"it may name parameters and {', '.join(self._known)}"
            raise self._wrong(f"names {name!r}, which is not known; {hint}")

    def _wrong(self, why: str) -> InvalidInput:
        return InvalidInput(f"the filter {self._source[:200]!r} {why}")


def _as_cel(match: re.Match[str]) -> str:
    if match["text"]:
        return match["text"]
    return "==" if match["equal"] else _AS_CEL[match["word"].lower()]
