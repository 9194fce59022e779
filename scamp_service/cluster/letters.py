"""Messages of ranks to the sink, as bytes: JSON of plain values, which is checked when it is read.

Ray pickles what an actor is called with, and a pickle of a user's object runs the user's code where it is read. Only
``bytes`` are handed over as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from scamp_service.errors import InvalidInput
from scamp_service.lifecycle import Outcome
from scamp_service.model import Report
from workloads.training.reported import Unreportable, plain_metrics

_ARGUMENTS: Mapping[str, TypeAdapter[Any]] = {
    "started": TypeAdapter(tuple[int, int, str]),
    "flush": TypeAdapter(tuple[Report]),
    "outcome": TypeAdapter(tuple[int, int, str, Outcome, str, str]),
    "blob": TypeAdapter(tuple[str]),
}
"""The arguments of each method of ``Sink`` that a letter may call."""


def letter(method: str, *args: Any) -> bytes:
    """A call of a method of ``Sink``. Halves of characters (lone surrogates), which no text may have, become ``?``."""
    return json.dumps([method, args], ensure_ascii=False, default=_fields).encode("utf-8", "replace")


def read(data: bytes) -> tuple[str, tuple[Any, ...]]:
    """The method that a letter calls, and its arguments. Raises ``InvalidInput`` for anything but such a letter."""
    try:
        method, args = _LETTER.validate_json(data)
        arguments: tuple[Any, ...] = _ARGUMENTS[method].validate_python(args)
        for argument in arguments:
            for row in argument.metrics if isinstance(argument, Report) else ():
                plain_metrics(row.values)
    except (ValidationError, KeyError, Unreportable) as error:
        raise InvalidInput(f"this is no message of a rank: {error}") from None
    return method, arguments


_LETTER = TypeAdapter(tuple[str, list[Any]])


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in type(value).__slots__}
