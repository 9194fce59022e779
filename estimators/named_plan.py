"""A plan given as text, such as ``tp=2,micro_batch=8`` or ``pp=2,cut=3-5,micro_batch=2``, or as JSON."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, get_type_hints

from estimators.model import Plan


def plan_of(text: str) -> Plan:
    """Plan from its text. Raises ``ValueError``, whose message says how plans are written."""
    try:
        if text.lstrip().startswith("{"):
            return Plan.from_json(json.loads(text))
        if without := [part for part in text.split(",") if "=" not in part]:
            raise ValueError(f"{without[0]!r} gives no field a value: write FIELD=VALUE")
        parts = dict(part.split("=", 1) for part in text.replace(" ", "").split(","))
        return Plan.from_json({name: _value(name, value) for name, value in parts.items()})
    except (TypeError, ValueError, KeyError) as error:
        names = ", ".join(_TYPES)
        raise ValueError(
            f"{text!r} is not a plan ({error}); write for example micro_batch=8,tp=2; the fields are {names}"
        ) from None


_TYPES: dict[str, type] = {item.name: get_type_hints(Plan)[item.name] for item in fields(Plan) if item.init}


def _value(name: str, text: str) -> Any:
    if name not in _TYPES:
        raise ValueError(f"a plan has no field {name!r}")
    if _TYPES[name] is bool:
        return {"true": True, "false": False}[text.lower()]
    if _TYPES[name] not in (int, str):
        return tuple(number for part in text.split("-") if part for number in _numbers(part))
    return _TYPES[name](text)


def _numbers(text: str) -> range:
    """The numbers of a text such as ``3`` or ``2..5``."""
    first, _, last = text.partition("..")
    return range(int(first), int(last or first) + 1)
