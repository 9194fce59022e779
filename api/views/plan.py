"""A plan in words."""

from __future__ import annotations

from estimators.model import Plan
from scamp_service.model import Json


def plan_text(plan: Json | None) -> str:
    return str(Plan.from_json(plan)) if plan else ""
