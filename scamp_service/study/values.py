"""Types of the values in a study, checked as they are read: numbers, texts, names, and options of several classes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from scamp.yaml_numbers import as_number

LARGEST_INT = 2**53
"""Larger integers are not exact as floats, which samplers and JSON readers use."""


class Strict(BaseModel):
    """A model that refuses unknown keys and values of the wrong type."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)


def at_most(number: int) -> BeforeValidator:
    """Refuse a longer list or mapping before its items are read: 60,000 wrong ones take seconds."""

    def short(value: Any) -> Any:
        if isinstance(value, list | dict) and len(value) > number:
            raise ValueError(f"must have at most {number} entries, not {len(value)}")
        return value

    return BeforeValidator(short)


def is_number(value: Any) -> bool:
    """Whether ``value`` is an integer or a float, and no bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def number_of(value: Any) -> Any:
    """``value`` if it is a finite number, or text that ``as_number`` turns into one."""
    value = as_number(value)
    if not is_number(value):
        raise ValueError("must be a number")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("must be finite")
    if isinstance(value, int) and abs(value) > LARGEST_INT:
        raise ValueError("must lie within ±2^53")
    return value


def _integer(value: Any) -> Any:
    try:
        number = number_of(value)
    except ValueError as error:
        raise ValueError(str(error) if is_number(value) and isinstance(value, int) else "must be an integer") from None
    if number is not value and float(number).is_integer():  # written as 1e3
        return int(number)
    if not isinstance(number, int):
        raise ValueError("must be an integer")
    return number


def _scalar(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and as_number(value) is value:
        if len(value) > 1000:
            raise ValueError("must be at most 1000 characters long")
        if "\0" in value or not _encodable(value):  # no database can store these
            raise ValueError("must be text without NUL characters and lone surrogates")
        return value
    if not isinstance(value, int | float | str):
        raise ValueError("must be true, false, a number or text")
    return number_of(value)


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


def _value(value: Any, depth: int = 0) -> Any:
    if value is None:
        return None
    if isinstance(value, list):
        if depth == 4 or len(value) > 100:
            raise ValueError("lists must have at most 100 entries and 4 levels")
        return [_value(entry, depth + 1) for entry in value]
    try:
        return _scalar(value)
    except ValueError as error:
        raise ValueError(str(error).replace("must be true, false,", "must be null, true, false, a list,")) from None


def _given(value: Any, depth: int = 0) -> Any:
    if isinstance(value, list) and any(isinstance(entry, dict) for entry in value):
        if depth == 8 or len(value) > 1000:
            raise ValueError("must have at most 1000 blocks, and 8 levels of them")
        return [_given_block(entry, depth) for entry in value]
    return _value(value)


def _given_block(block: Any, depth: int) -> Any:
    if not isinstance(block, dict) or not all(isinstance(name, str) for name in block):
        raise ValueError("must be a list of mappings from names to values")
    return {name: _given(value, depth + 1) for name, value in block.items()}


def key_of(value: Any) -> Hashable:
    """Equal for equal values of a parameter, where ``True`` is not 1, but 1 is 1.0. Lists and mappings have one too."""
    if isinstance(value, list | dict):
        return "json", json.dumps(value, sort_keys=True)
    return isinstance(value, bool), value


Scalar = Annotated[bool | int | float | str, BeforeValidator(_scalar)]
Value = Annotated[Any, BeforeValidator(_value)]
"""A value of a parameter: a scalar, null, or a list of values."""
Given = Annotated[Any, BeforeValidator(_given)]
"""A value that a user gives to a parameter, which may be a list of repeated blocks."""
Params = dict[str, Any]
"""Parameters of a candidate by name. A repeated block is a list of mappings; the others are of the type ``Value``."""
Number = Annotated[int | float, BeforeValidator(number_of)]
Integer = Annotated[int, BeforeValidator(_integer)]
Name = Annotated[str, AfterValidator(_name)]
Title = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(_printable)]


def by_name(union: Any, field: str) -> dict[str, Any]:
    """The classes of ``union`` by the name that each has as the literal type of its ``field``."""
    return {get_args(options.model_fields[field].annotation)[0]: options for options in get_args(union)}


@dataclass(frozen=True, slots=True, eq=False)  # hashable, as annotations have to be
class OneOf:
    """Annotation that reads a value as the class that ``choices`` has for ``name_of`` the value.

    A value without such a name is refused with ``message``, as an error of the type ``kind``.
    """

    choices: Mapping[str, type[BaseModel]]
    name_of: Callable[[Any], str | None]
    kind: str
    message: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.tagged_union_schema(
            {name: handler.generate_schema(options) for name, options in self.choices.items()},
            discriminator=self.name_of,
            custom_error_type=self.kind,
            custom_error_message=self.message,
        )
