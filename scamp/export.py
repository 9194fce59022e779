"""Trials of the API as flat rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_FIRST = ("number", "state", "value")
_GROUPS = ("values.", "params.", "metrics.")
_LEFT_OUT = frozenset(("id", "study_id", "plan", *_FIRST, "values", "params", "metrics"))


def trial_row(trial: Mapping[str, Any]) -> dict[str, Any]:
    """A trial of the API as one flat row: number, state, values, parameters and metrics, and then the rest.

    Its parameters are ``params.NAME``, of blocks ``params.layers.0.width``, its metrics ``metrics.NAME``. The plan is
    left out but for its words. Several objectives are ``values.0``, ``values.1``, … in their order.
    """
    values = trial.get("values") or ()
    return {
        **{name: trial.get(name) for name in _FIRST},
        **({f"values.{index}": value for index, value in enumerate(values)} if len(values) > 1 else {}),
        **_flat("params", trial["params"]),
        **{f"metrics.{name}": value for name, value in trial.get("metrics", {}).items()},
        **{name: value for name, value in trial.items() if name not in _LEFT_OUT},
    }


def columns_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Every column that any of these rows of ``trial_row`` has, in its order."""
    columns = dict.fromkeys(name for row in rows for name in row)

    def group(name: str) -> int:
        return next((place for place, start in enumerate(_GROUPS) if name.startswith(start)), len(_GROUPS))

    return [*_FIRST, *sorted((name for name in columns if name not in _FIRST), key=group)] if columns else []


def _flat(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {key: leaf for part, inner in value.items() for key, leaf in _flat(f"{name}.{part}", inner).items()}
    if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        return {key: leaf for index, inner in enumerate(value) for key, leaf in _flat(f"{name}.{index}", inner).items()}
    return {name: value}
