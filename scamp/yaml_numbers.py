"""Reads numbers that YAML 1.1, which PyYAML follows, takes for text: ``1e-4``, without a point or without a sign."""

from __future__ import annotations

import re
from typing import Any

_EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")


def as_number(value: Any) -> Any:
    """``value``, or its number if it is text such as ``1e-4``."""
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value


def with_numbers(value: Any) -> Any:
    """``value`` as YAML has read it, with ``as_number`` of all values in its lists and mappings."""
    if isinstance(value, list):
        return [with_numbers(entry) for entry in value]
    if isinstance(value, dict):
        return {name: with_numbers(entry) for name, entry in value.items()}
    return as_number(value)
