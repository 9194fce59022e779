"""Reads the audit log. ``WritingPart`` writes it, in the transaction of each change that somebody asks for."""

from __future__ import annotations

from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy import bindparam

from scamp_service.access.model import AuditEntry
from scamp_service.store import schema
from scamp_service.store.parts.part import Part
from scamp_service.store.rows import select_fields

_C = schema.audit.c


class Audit(Part):
    """Who changed what, and when."""

    def page(
        self, *, after: int = 0, limit: int = 100, actor: str | None = None, study_id: int | None = None
    ) -> list[AuditEntry]:
        """The newest changes with id < ``after`` (0: from the newest), by descending id."""
        filters = {"after": after or None, "actor": actor, "study_id": study_id}
        present = {name: value for name, value in filters.items() if value is not None}
        return self._all(AuditEntry, _page(frozenset(present)), limit=limit, **present)


@cache
def _page(names: frozenset[str]) -> sa.Select[Any]:
    conditions = {
        "after": _C.id < bindparam("after"),
        "actor": _C.actor == bindparam("actor"),
        "study_id": _C.study_id == bindparam("study_id"),
    }
    statement = select_fields(schema.audit, AuditEntry).where(*(conditions[name] for name in sorted(names)))
    return statement.order_by(_C.id.desc()).limit(bindparam("limit"))
