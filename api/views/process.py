"""Answers of the health checks."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from api.views.view import View


class Health(View):
    """The process answers."""

    status: Annotated[str, Field(examples=["ok"])]


class Readiness(View):
    """Whether a study that is submitted now would run."""

    status: Annotated[str, Field(description="`ready` or `not ready`", examples=["ready"])]
    database: Annotated[str, Field(description="`ok`, or why nothing can be stored in it", examples=["ok"])]
    data_directory: Annotated[str, Field(description="`ok`, or why it cannot be used", examples=["ok"])]
    controller: Annotated[str, Field(description="`ok`, or why no controller is at work", examples=["ok"])]
