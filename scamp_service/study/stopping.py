"""Options of each stopping rule, as a user writes them. ``control.stopping`` has the rules themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Discriminator, Field, Tag, model_validator

from scamp_service.study.values import Integer, Name, Number, Strict, at_most

MOST_RULES = 10
_Steps = Annotated[Integer, Field(ge=1)] | None
_Factor = Annotated[Integer, Field(ge=2, le=1000)]
_Multiple = Annotated[Number, Field(gt=0, le=1000)]
_Trials = Annotated[Integer, Field(ge=1, le=100_000)]


class Asha(Strict):
    """Asynchronous successive halving: at the rungs ``min_steps × reduction_factor^k`` the best 1/``reduction_factor``
    of the trials continue.

    A trial that is not among them stops, or is paused with ``promote``: then it continues once it is among them, from
    its checkpoint. ``min_steps`` defaults to the first report.
    """

    rule: Literal["asha"] = "asha"
    min_steps: _Steps = None
    reduction_factor: _Factor = 3
    promote: bool = False


class Hyperband(Strict):
    """Successive halving in several brackets. Each later one leaves out one more of the first rungs.

    Each trial belongs to one bracket, by its number, and is compared with the others there. ``brackets`` defaults to
    one more than there are rungs: the last bracket stops nobody.
    """

    rule: Literal["hyperband"]
    min_steps: _Steps = None
    reduction_factor: _Factor = 3
    brackets: Annotated[Integer, Field(ge=1, le=20)] | None = None
    promote: bool = False


class Percentile(Strict):
    """Stops a trial at a report from ``min_steps`` on, unless its best value so far is within the best ``percentile``
    per cent of the values that others have reported there.

    With fewer than ``min_trials`` others it stops none. ``min_steps`` defaults to the first report.
    """

    rule: Literal["percentile"]
    percentile: Annotated[Number, Field(gt=0, lt=100)] = 25.0
    min_steps: _Steps = None
    min_trials: _Trials = 5


class Median(Strict):
    """Stops as ``percentile`` with 50: a trial whose best value so far is worse than the median of the others."""

    rule: Literal["median"]
    min_steps: _Steps = None
    min_trials: _Trials = 5


class Patience(Strict):
    """Completes a trial that has not improved by more than ``min_delta`` in its last ``reports`` reports."""

    rule: Literal["patience"]
    reports: Annotated[Integer, Field(ge=1, le=1000)] = 10
    min_delta: Annotated[Number, Field(ge=0)] = 0
    min_steps: _Steps = None


class Threshold(Strict):
    """Stops a trial that reports less than ``lower`` or more than ``upper``, from ``min_steps`` on."""

    rule: Literal["threshold"]
    lower: Number | None = None
    upper: Number | None = None
    min_steps: _Steps = None

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.lower is None and self.upper is None:
            raise ValueError("a threshold needs lower, upper or both")
        if self.lower is not None and self.upper is not None and self.lower >= self.upper:
            raise ValueError(f"lower ({self.lower}) must be less than upper ({self.upper})")
        return self


class Population(Strict):
    """Population based training: every ``interval`` steps the worst ``quantile`` of the trials give way to copies of
    the best, whose parameters in ``mutate`` change.

    A number is multiplied by one of ``factors``, or drawn anew with probability ``resample``, as is a choice.
    ``interval`` defaults to the steps between reports. The population are the trials of the budget; copies come on top.
    """

    rule: Literal["pbt"]
    mutate: Annotated[list[Name], Field(min_length=1, max_length=100), at_most(100)]
    interval: _Steps = None
    quantile: Annotated[Number, Field(gt=0, le=0.5)] = 0.25
    resample: Annotated[Number, Field(ge=0, le=1)] = 0.25
    factors: Annotated[list[_Multiple], Field(min_length=1, max_length=10), at_most(10)] = Field(default=[0.8, 1.2])


AT_REPORTS = (Percentile, Median, Patience, Threshold)
"""Options of the rules that judge a trial at each of its reports, by all before; others judge at rungs alone."""


class Never(Strict):
    """Stops no trial early."""

    rule: Literal["none"]

    @model_validator(mode="before")
    @classmethod
    def _alone(cls, value: Any) -> Any:
        """Without the options of successive halving, which earlier versions stored with every rule."""
        if isinstance(value, Mapping):
            return {name: option for name, option in value.items() if name not in ("min_steps", "reduction_factor")}
        return value


RULE_OPTIONS: Mapping[str, type[Strict]] = {
    get_args(options.model_fields["rule"].annotation)[0]: options
    for options in (Asha, Hyperband, Percentile, Median, Patience, Threshold, Population, Never)
}
"""The options of the rule with each name."""


def _rule(value: Any) -> str | None:
    if isinstance(value, Mapping):
        name = value.get("rule", "asha")
        return name if isinstance(name, str) else None
    return getattr(value, "rule", None)


Rule = Annotated[
    Annotated[Asha, Tag("asha")]
    | Annotated[Hyperband, Tag("hyperband")]
    | Annotated[Percentile, Tag("percentile")]
    | Annotated[Median, Tag("median")]
    | Annotated[Patience, Tag("patience")]
    | Annotated[Threshold, Tag("threshold")]
    | Annotated[Population, Tag("pbt")]
    | Annotated[Never, Tag("none")],
    Discriminator(
        _rule, custom_error_type="rule", custom_error_message=f"must be {{rule: {' | '.join(RULE_OPTIONS)}, …}}"
    ),
]


def _number(value: Any) -> str | None:
    return "several" if isinstance(value, list) else "one"


Stopping = Annotated[
    Annotated[Rule, Tag("one")]
    | Annotated[Annotated[list[Rule], Field(min_length=1, max_length=MOST_RULES), at_most(MOST_RULES)], Tag("several")],
    Discriminator(_number),
]
"""One rule, or a list of rules; each may stop a trial."""
