"""The study as a user writes it. Pydantic lives here, at the edge; errors say which field, and what is allowed."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Scalar = bool | int | float | str


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Choice(_Strict):
    """One of a list of values."""

    choice: Annotated[list[Scalar], Field(min_length=1, max_length=1000)]


class Range(_Strict):
    """A number between ``low`` and ``high`` (both included); ``int`` when both are written as integers."""

    low: int | float
    high: int | float
    log: bool = False
    step: int | float | None = None

    @property
    def integer(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) must not exceed high ({self.high})")
        if self.log and self.low <= 0:
            raise ValueError(f"a log range needs low > 0, got {self.low}")
        if self.log and self.step is not None:
            raise ValueError("a log range cannot have a step")
        if self.step is not None and self.step <= 0:
            raise ValueError(f"step must be positive, got {self.step}")
        if self.integer and self.step is not None and not float(self.step).is_integer():
            raise ValueError(f"the step of an integer range must be an integer, got {self.step}")
        return self


class Objective(_Strict):
    metric: Annotated[str, Field(min_length=1, max_length=100)]
    direction: Literal["maximize", "minimize"] = "maximize"


class Search(_Strict):
    sampler: Literal["tpe", "random", "grid"] = "tpe"
    seed: int = 0


class Stopping(_Strict):
    """Asynchronous successive halving: at rungs ``min_steps × reduction_factor^k`` keep the best 1/reduction_factor."""

    rule: Literal["asha", "none"] = "asha"
    min_steps: Annotated[int, Field(ge=1)] | None = None
    reduction_factor: Annotated[int, Field(ge=2)] = 3


class Budget(_Strict):
    """``steps`` are optimizer steps of one trial; an evaluation is reported every ``report_every`` of them."""

    trials: Annotated[int, Field(ge=1, le=100_000)] = 20
    steps: Annotated[int, Field(ge=1)] = 100
    report_every: Annotated[int, Field(ge=1)] | None = None
    max_concurrent: Annotated[int, Field(ge=1)] | None = None
    max_lost: Annotated[int, Field(ge=0)] = 5
    max_oom: Annotated[int, Field(ge=0)] = 5


class StudySpec(_Strict):
    """What the user asks for. ``start_with`` are candidates to try first; ``fixed`` holds for all candidates."""

    name: Annotated[str, Field(min_length=1, max_length=100)]
    workload: Annotated[str, Field(min_length=1, max_length=300)]
    objective: Objective
    space: dict[str, Choice | Range]
    fixed: dict[str, Scalar] = {}
    start_with: list[dict[str, Scalar]] = []
    search: Search = Search()
    stopping: Stopping = Stopping()
    budget: Budget = Budget()

    @field_validator("space")
    @classmethod
    def _not_empty(cls, space: dict[str, Choice | Range]) -> dict[str, Choice | Range]:
        if not space:
            raise ValueError("the search space is empty: name at least one parameter with choice, or low and high")
        return space

    @field_validator("workload")
    @classmethod
    def _well_formed(cls, workload: str) -> str:
        if not re.fullmatch(r"[a-z_][a-z0-9_]*|(?!/)(?!.*\.\.)[\w./-]+\.py:[A-Za-z_]\w*", workload):
            raise ValueError(
                f"{workload!r} is neither a built-in workload nor FILE.py:Class with a path relative to the study"
            )
        return workload

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        both = sorted(set(self.space) & set(self.fixed))
        if both:
            raise ValueError(f"{', '.join(both)}: both in space and in fixed; keep one")
        if self.search.sampler == "grid":
            open_ended = [k for k, d in self.space.items() if isinstance(d, Range) and not self._countable(d)]
            if open_ended:
                raise ValueError(f"grid search needs choices or stepped ranges; {', '.join(open_ended)} is continuous")
        for position, start in enumerate(self.start_with):
            unknown = sorted(set(start) - set(self.space) - set(self.fixed))
            if unknown:
                raise ValueError(f"start_with[{position}] names {', '.join(unknown)}, found neither in space nor fixed")
        if len(self.start_with) > self.budget.trials:
            raise ValueError(
                f"start_with has {len(self.start_with)} candidates, the budget {self.budget.trials} trials"
            )
        return self

    @staticmethod
    def _countable(dimension: Range) -> bool:
        return not dimension.log and (dimension.integer or dimension.step is not None)

    @property
    def report_every(self) -> int:
        return self.budget.report_every or max(1, math.ceil(self.budget.steps / 10))

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")
