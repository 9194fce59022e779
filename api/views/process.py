"""Whether the process answers, and can do its work."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from api.views.view import View


class Health(View):
    status: Annotated[str, Field(examples=["ok"])]


class Readiness(View):
    status: Annotated[str, Field(examples=["ready"])]
    database: Annotated[str, Field(examples=["ok"])]
    controller: Annotated[str, Field(examples=["ok"])]
