"""Says whether a request that is repeated with its idempotency key is for the same study."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from scamp_service.errors import Conflict, InvalidInput
from scamp_service.model import Json
from scamp_service.store import schema
from scamp_service.study.parse import parse_study


def expect_same(stored: Any, row: Mapping[str, Any]) -> int:
    """The id of the stored study with this idempotency key. Raises ``Conflict`` unless ``row`` is the same study.

    Versions before schema 0011 hashed the spec with its defaults, so theirs are compared with the defaults of today.
    """
    is_same = stored.body_sha256 == row["body_sha256"] or (
        stored.code == row["code"] and _with_defaults(stored.spec) == _with_defaults(row["spec"])
    )
    if not is_same:
        key = row["idempotency_key"]
        raise Conflict(f"the idempotency key {key!r} belongs to study {stored.id}, which is different; take a new key")
    study_id: int = stored.id
    return study_id


def _with_defaults(spec: Json) -> Json:
    try:
        return parse_study(spec).to_json()
    except InvalidInput:  # it has an option that exists no more
        return spec


def body_sha256_of(spec: Json, code: str | None) -> str:
    """Hash of a study, whatever the order of its keys."""
    return hashlib.sha256(schema.dump_json([_sorted(spec), code]).encode()).hexdigest()


def _sorted(value: Any) -> Any:
    """``value`` with the keys of all its mappings sorted, so that their order does not matter."""
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, (list, tuple)) else value
