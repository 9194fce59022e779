"""The values that a study may hold, each checked as it is read: numbers, texts, names of parameters, titles."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

LARGEST_INT = 2**53
"""Integers beyond it are not exact as a float, which samplers and JSON readers use."""
_EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")


class Strict(BaseModel):
    """Refuses unknown keys, and values of another type than declared."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)


def _number(value: Any) -> Any:
    """PyYAML follows YAML 1.1, where ``1e-4`` is text for want of a dot: nobody means that."""
    if isinstance(value, str) and _EXPONENT.fullmatch(value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("must be a number")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("must be finite")
    if isinstance(value, int) and abs(value) > LARGEST_INT:
        raise ValueError("must lie within ±2^53")
    return value


def _integer(value: Any) -> Any:
    try:
        number = _number(value)
    except ValueError:
        raise ValueError("must be an integer") from None
    if number is not value and float(number).is_integer():  # written as 1e3
        return int(number)
    if not isinstance(number, int):
        raise ValueError("must be an integer")
    return number


def _scalar(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and not _EXPONENT.fullmatch(value):
        if len(value) > 1000:
            raise ValueError("must not be longer than 1000 characters")
        if "\0" in value or not _encodable(value):  # no database stores these
            raise ValueError("must be text without NUL and lone surrogates")
        return value
    if not isinstance(value, int | float | str):
        raise ValueError("must be true, false, a number or a text")
    return _number(value)


def _encodable(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _name(value: str) -> str:
    if not value.isidentifier() or len(value) > 100:
        raise ValueError("parameter names are identifiers of at most 100 characters: letters, digits and _")
    return value


def _printable(value: str) -> str:
    if not value.isprintable() or not value.strip():
        raise ValueError("must be printable text on one line")
    return value


Scalar = Annotated[bool | int | float | str, BeforeValidator(_scalar)]
Number = Annotated[int | float, BeforeValidator(_number)]
Integer = Annotated[int, BeforeValidator(_integer)]
Name = Annotated[str, AfterValidator(_name)]
Title = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(_printable)]
