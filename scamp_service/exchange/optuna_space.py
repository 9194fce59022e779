"""The search space of a study as other programs see it through Optuna: distributions and values of flat parameters.

Values are those of candidates, in the units of the study file: a stepped range is a stepped range here, while the
samplers of ``search`` see its indices. A list among choices is its JSON, as Optuna knows no lists.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from pydantic import TypeAdapter, ValidationError

from scamp_service.study.spaces.slots import flat, slots_of
from scamp_service.study.spaces.space import Categorical, Dimension, Ordinal, Range

_SPACE: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Dimension])


class OptunaSpace:
    """The parameters of a study, from the JSON of its spec; none for one that Optuna has created."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        try:
            self._slots = slots_of(_SPACE.validate_python(spec.get("space") or {}))
        except (ValidationError, ValueError):  # of a version that allowed what this one does not
            self._slots = ()
        self.distributions = {slot.name: distribution_of(slot.dimension) for slot in self._slots}
        """Distribution of each flat parameter, such as ``layers.0.width``."""

    def flat(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The searched parameters of a candidate, as Optuna has them."""
        return {name: label_of(value) for name, value in flat(self._slots, params).items()}


def distribution_of(dimension: Categorical | Ordinal | Range) -> BaseDistribution:
    """Optuna's distribution of one parameter."""
    if not isinstance(dimension, Range):
        values = dimension.choice if isinstance(dimension, Categorical) else dimension.ordinal
        return CategoricalDistribution([label_of(value) for value in values])
    low, high, step = dimension.low, dimension.high, dimension.step
    if dimension.num_values is not None:
        high = dimension.value(dimension.num_values - 1)  # Optuna warns unless high is low plus a multiple of step
    if dimension.integer:
        return IntDistribution(int(low), int(high), log=dimension.log, step=int(step or 1))
    return FloatDistribution(float(low), float(high), log=dimension.log, step=None if step is None else float(step))


def label_of(value: Any) -> Any:
    """A value as Optuna has it: lists and mappings are their JSON."""
    return json.dumps(value) if isinstance(value, list | dict) else value
