"""Numbers among the parameters of a candidate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

_Number = TypeVar("_Number", int, float)


def number_in(params: Mapping[str, Any], name: str, default: _Number) -> _Number:
    """The parameter ``name``, of the type of its ``default``. Raises ``ValueError`` if it is no number."""
    value = params.get(name, default)
    try:
        return type(default)(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must be a number, got {value!r}") from None
