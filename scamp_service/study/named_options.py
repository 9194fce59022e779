"""Options of which a study has one class among several, picked by a name in them: a sampler's, or a stopping rule's.

The union of the classes is their only list; the classes by name and the way they are read come from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema


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
