"""Shared by all answers: their base class, pages of a list, common fields, and errors."""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

Item = TypeVar("Item")
Count = Annotated[int, Field(ge=0)]
Time = Annotated[float, Field(description="seconds since the epoch, UTC", examples=[1_790_000_000.0])]
PlanShort = Annotated[
    str, Field(description="parallel degrees of the plan; empty while there is none", examples=["FSDP ×2"])
]
NumRanks = Annotated[int, Field(description="ranks of the plan, one on each device; 0 while there is no plan")]
LastEvent = Annotated[
    int, Field(description="id of an event that this answer includes: pass it to /v1/events?after= to follow on")
]


class View(BaseModel):
    """Base of all answers. A number that is not finite becomes null. Words below a field describe it."""

    model_config = ConfigDict(ser_json_inf_nan="null", protected_namespaces=(), use_attribute_docstrings=True)


class Page(View, Generic[Item]):
    """One page of a list."""

    model_config = ConfigDict(use_attribute_docstrings=False)  # to look for them in the source of each Page[…] is slow

    items: list[Item]
    next: Annotated[
        int | None, Field(description="`after` of the next page, which `Link` also has; null on the last page")
    ] = None


class Problem(View):
    """An error as in RFC 9457. `detail` says what is wrong and what to do."""

    type: str = "about:blank"
    title: Annotated[str, Field(examples=["Unprocessable Content"])]
    status: Annotated[int, Field(examples=[422])]
    detail: Annotated[str, Field(examples=["the study is not valid: space.lr: a log range needs low > 0, got 0"])]
