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
    parameters = list(signature.parameters.values())[num_given:]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return dict(params)
    named_parameters = [parameter for parameter in parameters if parameter.kind is not parameter.VAR_POSITIONAL]
    missing = [
        parameter.name
        for parameter in named_parameters
        if parameter.default is parameter.empty and parameter.name not in params
    ]
    if missing:
        words = f"needs a parameter {', '.join(missing)}, which the study does not give: add it to space or fixed"
        raise ValueError(f"{function.__name__}{signature} {words}")
    return {parameter.name: params[parameter.name] for parameter in named_parameters if parameter.name in params}
