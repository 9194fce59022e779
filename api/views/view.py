"""Shared by all answers: their base, pages of a list, and an error."""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

Item = TypeVar("Item")
Count = Annotated[int, Field(ge=0)]
Time = Annotated[float, Field(description="seconds since the epoch, UTC", examples=[1_790_000_000.0])]
PlanShort = Annotated[str, Field(description="degrees of the plan; empty while there is none", examples=["FSDP ×2"])]
NumRanks = Annotated[int, Field(description="devices that the plan spreads it over; 0 while there is no plan")]
LastEvent = Annotated[
    int, Field(description="this answer is at least as new as this event: follow /v1/events?after= from here")
]


class View(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="null", protected_namespaces=())


class Page(View, Generic[Item]):
    items: list[Item]
    next: Annotated[
        int | None, Field(description="pass it as `after` for the next page; null: this is the last (see also Link)")
    ] = None


class Problem(View):
    """An error by RFC 9457; ``detail`` says what is wrong and what to do."""

    type: str = "about:blank"
    title: Annotated[str, Field(examples=["Unprocessable Content"])]
    status: Annotated[int, Field(examples=[422])]
    detail: Annotated[str, Field(examples=["the study is not valid: space.lr: a log range needs low > 0, got 0"])]
