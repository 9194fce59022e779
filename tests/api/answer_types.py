"""Types of the API's answers for the dashboard's JavaScript, from the OpenAPI description.

``python -m tests.api.answer_types`` writes them to ``api/static/answers.d.ts``, which ``make types`` reads. A test
fails while that file differs from the API.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from api.app import create_app
from scamp_service.settings import Settings

FILE = Path(__file__).parents[2] / "api" / "static" / "answers.d.ts"
_HEAD = "// Answers of the REST API. Written by `python -m tests.api.answer_types`; do not edit.\n"
_WIDTH = 120


def answer_types(description: dict[str, Any]) -> str:
    """One interface for each schema that an answer of an OpenAPI ``description`` has, also inside of others."""
    schemas: dict[str, Any] = description["components"]["schemas"]
    answers = [operation["responses"] for path in description["paths"].values() for operation in path.values()]
    names: set[str] = set()
    due = _named_in(answers)
    while due:
        names |= due
        due = {inner for name in due for inner in _named_in(schemas[name])} - names
    return "\n".join([_HEAD, *(_declared(name, schemas[name]) for name in sorted(names))])


def _named_in(part: object) -> set[str]:
    """Names of the schemas to which a part of the description refers."""
    match part:
        case {"$ref": str(reference)}:
            return {reference.rsplit("/", 1)[-1]}
        case dict():
            return {name for value in part.values() for name in _named_in(value)}
        case list():
            return {name for value in part for name in _named_in(value)}
    return set()


def _declared(name: str, schema: dict[str, Any]) -> str:
    if "properties" not in schema:
        return f"export type {name} = {_type(schema)};\n"
    required = schema.get("required", [])
    fields = [_field(key, value, key in required) for key, value in schema["properties"].items()]
    return "\n".join([f"export interface {name} {{", *fields, "}\n"])


def _field(name: str, schema: dict[str, Any], required: bool) -> str:
    line = f"  {name}{'' if required else '?'}: {_type(schema)};"
    words = " ".join(schema.get("description", "").split())
    return f"  /** {words} */\n{line}" if words else line


def _type(schema: dict[str, Any]) -> str:
    match schema:
        case {"$ref": reference}:
            return str(reference).rsplit("/", 1)[-1]
        case {"anyOf": several} | {"oneOf": several}:
            return " | ".join(dict.fromkeys(_type(variant) for variant in several))
        case {"const": value}:
            return json.dumps(value)
        case {"enum": values}:
            return " | ".join(json.dumps(value) for value in values)
        case {"type": "array", "prefixItems": items}:
            return f"[{', '.join(_type(item) for item in items)}]"
        case {"type": "array"}:
            inner = _type(schema.get("items", {}))
            return f"({inner})[]" if "|" in inner else f"{inner}[]"
        case {"type": "object"}:
            values = schema.get("additionalProperties", True)
            return f"Record<string, {_type(values) if isinstance(values, dict) else 'any'}>"
        case {"type": "integer" | "number"}:
            return "number"
        case {"type": "string" | "boolean" | "null" as name}:
            return str(name)
    return "any"


def main() -> None:
    """Write the file. The API wants a database: it gets an empty one."""
    with tempfile.TemporaryDirectory() as folder:
        FILE.write_text(answer_types(create_app(Settings(data_dir=Path(folder))).openapi()))


if __name__ == "__main__":
    main()
