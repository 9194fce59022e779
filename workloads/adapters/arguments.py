"""Chooses which parameters of a candidate a function of the user gets."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any


def arguments_for(function: Callable[..., Any], params: Mapping[str, Any], num_given: int = 0) -> dict[str, Any]:
    """The parameters that ``function`` takes by name, after ``num_given`` other arguments; all with ``**params``.

    Raises ``ValueError`` for an argument that has no value.
    """
    signature = inspect.signature(function)
    wanted = list(signature.parameters.values())[num_given:]
    if any(one.kind is one.VAR_KEYWORD for one in wanted):
        return dict(params)
    named = [one for one in wanted if one.kind is not one.VAR_POSITIONAL]
    missing = [one.name for one in named if one.default is one.empty and one.name not in params]
    if missing:
        words = f"needs a parameter {', '.join(missing)}, which the study does not give: add it to space or fixed"
        raise ValueError(f"{function.__name__}{signature} {words}")
    return {one.name: params[one.name] for one in named if one.name in params}
