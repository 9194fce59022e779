"""Says whether a request that is repeated with its idempotency key is for the same study."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from scamp_service.errors import Conflict
from scamp_service.model import Json
from scamp_service.store import schema


def expect_same(stored: Any, row: Mapping[str, Any]) -> int:
    """The id of the stored study with this idempotency key. Raises ``Conflict`` unless ``row`` is the same study."""
    if stored.body_sha256 != row["body_sha256"]:
        key = row["idempotency_key"]
        raise Conflict(f"the idempotency key {key!r} belongs to study {stored.id}, which is different; take a new key")
    study_id: int = stored.id
    return study_id


def body_sha256_of(spec: Json, code: str | None) -> str:
    """Hash of a study, whatever the order of its keys."""
    return hashlib.sha256(schema.dump_json([_sorted(spec), code]).encode()).hexdigest()


def _sorted(value: Any) -> Any:
    """``value`` with the keys of all its mappings sorted, so that their order does not matter."""
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, (list, tuple)) else value
