"""Writes what studies have in a line: values of metrics and parameters, durations, and lists of names."""

from __future__ import annotations

import json
from typing import Any

PREDICTED = "predicted."
"""Begins the names of what is predicted, by which studies bound candidates and name objectives."""


def shown_metric(metric: str, value: float) -> str:
    """A value of ``metric`` as text, by the rule of ``objectiveValue`` in the dashboard's ``format.js``.

    In the usual range it has four decimals, so that a column lines up, and five significant digits elsewhere. Numbers
    that were counted before a training have no decimals.
    """
    if metric.startswith(PREDICTED) and float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e4 else f"{value:.5g}"


def shown_mib(num_bytes: float) -> str:
    """Bytes as MiB without the unit: with one decimal, and below 1 with two significant digits."""
    mib = num_bytes / 2**20
    return f"{mib:.1f}" if mib >= 0.95 or not mib else f"{mib:.2g}"


def shown_value(value: Any) -> str:
    """The value of a parameter in a line; lists and repeated blocks as JSON."""
    if isinstance(value, float):
        return f"{value:.3g}"
    return json.dumps(value) if isinstance(value, list | dict) or value is None else str(value)


def first_names(names: list[str], most: int = 10) -> str:
    """The first ``most`` names, because a study may be wrong about a hundred thousand of them."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(name[:100] for name in names[:most]) + more


def duration(seconds: float) -> str:
    """Seconds in words as short as ``1 h 20 min``."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"
