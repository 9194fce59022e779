"""Options of each stopping rule, as a user writes them. ``control.stopping`` has the rules themselves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from scamp_service.study.spaces.space import Categorical, Dimension, Ordinal, Range
from scamp_service.study.values import Integer, Name, Number, OneOf, Strict, at_most, by_name

MOST_RULES = 10
MAX_JUDGED = 1000
"""Evaluations of one trial, for the rules that judge it at each of them by all before."""
_Steps = Annotated[Integer, Field(ge=1)] | None
_Factor = Annotated[Integer, Field(ge=2, le=1000)]
_Multiple = Annotated[Number, Field(gt=0, le=1000)]
_Trials = Annotated[Integer, Field(ge=1, le=100_000)]


class RuleOptions(Strict):
    """Options of one rule."""

    rule: str

    one_objective: ClassVar[bool] = False
    """Whether the rule judges a trial by its own values alone, without comparing trials. Simulations leave it out."""
    once_because: ClassVar[str] = ""
    """Why a study may have this rule only once; empty if it may have several."""

    changes_trainings: ClassVar[str] = ""
    """How the rule lets trials train in another way than to their end, other than by stopping them; empty: not."""

    def complaints(self, space: Mapping[str, Dimension], steps: int, report_every: int, unit: str) -> Iterator[str]:
        """Why the rule does not suit trials of ``steps`` steps or epochs (``unit``), with a report every
        ``report_every``."""
        yield from ()


class _FromMinSteps(RuleOptions):
    """Options of a rule that judges trials from ``min_steps`` on; the default is their first report."""

    min_steps: _Steps = None

    def complaints(self, space: Mapping[str, Dimension], steps: int, report_every: int, unit: str) -> Iterator[str]:
        """Complain about a ``min_steps`` that no trial reaches."""
        if self.min_steps is not None and self.min_steps >= steps > 1:
            yield f"stopping.min_steps ({self.min_steps}) must be less than budget.{unit}s ({steps})"


class _AtReports(_FromMinSteps):
    """Options of a rule that judges a trial at each of its reports, and compares with all of its earlier ones.

    Other rules judge at rungs alone.
    """

    def complaints(self, space: Mapping[str, Dimension], steps: int, report_every: int, unit: str) -> Iterator[str]:
        """Complain about more reports than such a rule can judge."""
        yield from super().complaints(space, steps, report_every, unit)
        if (num_reports := steps // report_every) > MAX_JUDGED:
            yield (
                f"{self.rule} judges every report, and {num_reports} are more than {MAX_JUDGED}; "
                f"set budget.report_every to {math.ceil(steps / MAX_JUDGED)} or more"
            )


class AshaOptions(_FromMinSteps):
    """Asynchronous successive halving: at the rungs ``min_steps × reduction_factor^k`` the best 1/``reduction_factor``
    of the trials continue.

    A trial that is not among them stops, or is paused with ``promote``: then it continues once it is among them, from
    its checkpoint. ``min_steps`` defaults to the first report.
    """

    rule: Literal["asha"] = "asha"
    reduction_factor: _Factor = 3
    promote: bool = False


class HyperbandOptions(_FromMinSteps):
    """Successive halving in several brackets. Each later one leaves out one more of the first rungs.

    Each trial belongs to one bracket, by its number, and is compared with the others there. ``brackets`` defaults to
    one more than there are rungs: the last bracket stops nobody.
    """

    rule: Literal["hyperband"]
    reduction_factor: _Factor = 3
    brackets: Annotated[Integer, Field(ge=1, le=20)] | None = None
    promote: bool = False


class PercentileOptions(_AtReports):
    """Stops a trial at a report from ``min_steps`` on, unless its best value so far is within the best ``percentile``
    per cent of the values that others have reported there.

    With fewer than ``min_trials`` others it stops none. ``min_steps`` defaults to the first report.
    """

    rule: Literal["percentile"]
    percentile: Annotated[Number, Field(gt=0, lt=100)] = 25.0
    min_trials: _Trials = 5


class MedianOptions(_AtReports):
    """Stops as ``percentile`` with 50: a trial whose best value so far is worse than the median of the others."""

    rule: Literal["median"]
    min_trials: _Trials = 5


class PatienceOptions(_AtReports):
    """Completes a trial that has not improved by more than ``min_delta`` in its last ``reports`` reports."""

    rule: Literal["patience"]
    one_objective = True
    changes_trainings = "completes trials at different steps"
    reports: Annotated[Integer, Field(ge=1, le=1000)] = 10
    min_delta: Annotated[Number, Field(ge=0)] = 0


class ThresholdOptions(_AtReports):
    """Stops a trial that reports less than ``lower`` or more than ``upper``, from ``min_steps`` on."""

    rule: Literal["threshold"]
    one_objective = True
    lower: Number | None = None
    upper: Number | None = None

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.lower is None and self.upper is None:
            raise ValueError("a threshold needs lower, upper or both")
        if self.lower is not None and self.upper is not None and self.lower >= self.upper:
            raise ValueError(f"lower ({self.lower}) must be less than upper ({self.upper})")
        return self


class PopulationOptions(RuleOptions):
    """Population based training: every ``interval`` steps the worst ``quantile`` of the trials give way to copies of
    the best, whose parameters in ``mutate`` change.

    A number is multiplied by one of ``factors``, or drawn anew with probability ``resample``, as is a choice.
    ``interval`` defaults to the steps between reports. The population are the trials of the budget; copies come on top.
    """

    rule: Literal["pbt"]
    changes_trainings = "copies trials and changes their parameters while they train"
    mutate: Annotated[list[Name], Field(min_length=1, max_length=100), at_most(100)]
    interval: _Steps = None
    quantile: Annotated[Number, Field(gt=0, le=0.5)] = 0.25
    resample: Annotated[Number, Field(ge=0, le=1)] = 0.25
    factors: Annotated[list[_Multiple], Field(min_length=1, max_length=10), at_most(10)] = Field(default=[0.8, 1.2])

    once_because: ClassVar = "a trial can be in one population only"

    def complaints(self, space: Mapping[str, Dimension], steps: int, report_every: int, unit: str) -> Iterator[str]:
        """Parameters that cannot change during training, and an interval beyond the last step."""
        for name in self.mutate:
            if not isinstance(space.get(name), Categorical | Ordinal | Range):
                yield f"stopping.mutate: {name} must be a parameter of space, and no repeated block"
            elif any(name in dimension.when for dimension in space.values()):
                yield f"stopping.mutate: other parameters depend on {name}, so it cannot change during training"
        if self.interval is not None and self.interval >= steps:
            yield f"stopping.interval ({self.interval}) must be less than budget.{unit}s ({steps})"


class NeverOptions(RuleOptions):
    """Stops no trial early."""

    rule: Literal["none"]


AnyRuleOptions = (
    AshaOptions
    | HyperbandOptions
    | PercentileOptions
    | MedianOptions
    | PatienceOptions
    | ThresholdOptions
    | PopulationOptions
    | NeverOptions
)

RULE_OPTIONS: Mapping[str, type[RuleOptions]] = by_name(AnyRuleOptions, "rule")
"""The options of the rule with each name."""


def _rule(value: Any) -> str | None:
    if isinstance(value, Mapping):
        name = value.get("rule", "asha")
        return name if isinstance(name, str) else None
    return getattr(value, "rule", None)


_OneRule = Annotated[
    AnyRuleOptions, OneOf(RULE_OPTIONS, _rule, "rule", f"must be {{rule: {' | '.join(RULE_OPTIONS)}, …}}")
]


def _number(value: Any) -> str | None:
    return "several" if isinstance(value, list) else "one"


Stopping = Annotated[
    Annotated[_OneRule, Tag("one")]
    | Annotated[
        Annotated[list[_OneRule], Field(min_length=1, max_length=MOST_RULES), at_most(MOST_RULES)], Tag("several")
    ],
    Discriminator(_number),
]
"""One rule, or a list of rules; each may stop a trial."""
