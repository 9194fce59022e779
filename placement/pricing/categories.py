"""Says what a rank needs memory for, in few categories: those of the exact search, for traced plans as well."""

from __future__ import annotations

from collections.abc import Mapping

from estimators.model import Prediction, size_in_words

_CATEGORIES = {
    "parameters": "parameters",
    "gradients": "gradients and optimizer",
    "optimizer": "gradients and optimizer",
    "activations": "activations",
    "learned": "learned",
}
"""Category of each part of a trace's peak. All other parts are transient."""


def bytes_by_category(prediction: Prediction) -> dict[str, int]:
    """Bytes that a rank reserves, by category; empty for a prediction without the parts of a trace."""
    if not prediction.parts:
        return {}
    totals = dict.fromkeys(("parameters", "gradients and optimizer", "activations", "transient"), 0)
    for part, num_bytes in prediction.parts.items():
        category = _CATEGORIES.get(part, "transient")
        totals[category] = totals.get(category, 0) + num_bytes
    return {**totals, "margin": prediction.margin_bytes}


def categories_in_words(num_bytes: Mapping[str, int]) -> str:
    """Bytes by category in one line."""
    return ", ".join(f"{name} {size_in_words(amount)}" for name, amount in num_bytes.items())
