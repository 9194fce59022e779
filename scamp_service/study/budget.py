"""The limits of a study: how many trials, how long each trains, and when the study ends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from scamp_service.patience import TRACE_SECONDS
from scamp_service.study.values import Integer, Number, Strict, number_of

MAX_TRIALS = 100_000
MAX_REPORTS = 100_000  # evaluations of one trial: each is a row
USUAL_STEPS = 100
MAX_OBJECTIVES = 8


def _target(value: Any) -> Any:
    """A number, or a mapping from metrics to numbers."""
    if isinstance(value, Mapping):
        if not value or len(value) > MAX_OBJECTIVES or not all(isinstance(name, str) for name in value):
            raise ValueError("must be a number, or a mapping from metrics to numbers")
        return {name: number_of(number) for name, number in value.items()}
    return number_of(value)


Target = Annotated[Any, BeforeValidator(_target)]


class Terminator(Strict):
    """Ends a study once little is left to gain: by Optuna's bound on the regret, which holds with high probability.

    The regret is how much better the best candidate of the space is than the best that was found. It is bounded from
    ``min_trials`` completed trials on, and the study ends once the bound is at most ``regret``.
    """

    regret: Annotated[Number, Field(gt=0, le=10**9)]
    min_trials: Annotated[Integer, Field(ge=2, le=MAX_TRIALS)] = 20


class Budget(Strict):
    """Limits of a study. It ends when it has tried all ``trials``, or earlier.

    It also ends once it has run for ``seconds``, once its trials have held devices for ``device_hours`` (hours ×
    devices), or once one has reported the ``target``, with several objectives a mapping from metrics to values, or once
    the ``terminator`` expects little more; what runs then counts with its newest value. ``steps`` are the optimizer
    steps of one trial, with an evaluation after every ``report_every`` of them. With ``epochs`` a trial makes that many
    passes over its training samples instead, and ``steps`` is None: then its ``length``, reports and rungs are counted
    in epochs, each of as many optimizer steps as the candidate's batch needs. ``max_concurrent`` limits the trials that
    run at once. A trial may be lost ``max_lost`` times without a new checkpoint in between, run out of memory
    ``max_oom`` times, and end with an error of its own code ``max_failures`` times, before it fails. An attempt that
    makes no progress for ``stall_seconds`` is ended; without a value it is 50 of its steps, at least 300 s, and 900 s
    before the first steps are timed. A trace of a candidate may take ``trace_seconds`` of processor time.
    """

    trials: Annotated[Integer, Field(ge=1, le=MAX_TRIALS)] = 20
    seconds: Annotated[Number, Field(gt=0, le=10**9)] | None = None
    device_hours: Annotated[Number, Field(gt=0, le=10**9)] | None = None
    target: Target | None = None
    terminator: Terminator | None = None
    steps: Annotated[Integer, Field(ge=1, le=10**9)] | None = USUAL_STEPS
    epochs: Annotated[Integer, Field(ge=1, le=10**6)] | None = None
    report_every: Annotated[Integer, Field(ge=1)] | None = None
    max_concurrent: Annotated[Integer, Field(ge=1)] | None = None
    max_lost: Annotated[Integer, Field(ge=0)] = 5
    max_oom: Annotated[Integer, Field(ge=0)] = 5
    max_failures: Annotated[Integer, Field(ge=0)] = 0
    stall_seconds: Annotated[float, Field(gt=0, le=10**7)] | None = None
    trace_seconds: Annotated[Integer, Field(ge=1, le=3600)] = TRACE_SECONDS

    @property
    def unit(self) -> Literal["step", "epoch"]:
        """The unit of ``length``: optimizer steps, or passes over the training samples."""
        return "step" if self.epochs is None else "epoch"

    @property
    def length(self) -> int:
        """Steps or epochs of one trial."""
        return self.epochs or self.steps or USUAL_STEPS

    @model_validator(mode="after")
    def _in_one_unit(self) -> Self:
        """With ``epochs`` there are no ``steps``."""
        if self.epochs is not None and "steps" in self.model_fields_set and self.steps is not None:
            raise ValueError("steps and epochs both say how long a trial is; keep one of them")
        self.steps = None if self.epochs else self.length
        if self.epochs:
            self.model_fields_set.discard("steps")
        return self

    @model_validator(mode="after")
    def _reported(self) -> Self:
        every = self.report_every
        if every is not None and every > self.length:
            raise ValueError(
                f"report_every ({every}) must not exceed {self.unit}s ({self.length}); otherwise nothing is reported"
            )
        if every is not None and self.length // every > MAX_REPORTS:
            raise ValueError(
                f"{self.length} {self.unit}s with a report every {every} make more than {MAX_REPORTS} reports a trial; "
                f"set report_every to {math.ceil(self.length / MAX_REPORTS)} or more"
            )
        return self
