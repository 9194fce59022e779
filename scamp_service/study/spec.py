"""The study as a user writes it. ``rules`` says what its fields must follow together.

Not here: reading text (``parse``), loading user files, the database, and the names of the built-in workloads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from estimators.axes import AXES
from estimators.model import Plan
from placement.packing.projects import DEFAULT_PROJECT
from scamp.shown import PREDICTED, first_names
from scamp_service.receivers import MOST_RECEIVERS, Receiver
from scamp_service.study.budget import MAX_OBJECTIVES, MAX_REPORTS, Budget
from scamp_service.study.objective import Objective
from scamp_service.study.objectives import Objectives
from scamp_service.study.predicted import PredictedBounds
from scamp_service.study.rules import broken_rules
from scamp_service.study.sampler_options import Populated
from scamp_service.study.search_options import SearchOptions
from scamp_service.study.spaces.space import Dimension
from scamp_service.study.stopping import AshaOptions, NeverOptions, RuleOptions, Stopping
from scamp_service.study.values import Given, Integer, Name, Strict, Title, Value, at_most
from scamp_service.study.workload_names import is_file

MAX_REPEATS = 100
MOST_PACKED = 12
"""A rank process has threads for so many attempts at once."""
MOST_KINDS = 20
PACKS = {"off": 1, "auto": MOST_PACKED}
Start = Annotated[dict[str, Given], at_most(200)]
Constraint = Annotated[str, Field(min_length=1, max_length=500)]


def plan_from(axes: Mapping[str, Any]) -> Plan:
    """The plan with these fields, as ``scamp plan --json`` prints them. Raises ``ValueError`` if it is not a plan."""
    plan_fields = {item.name: item for item in fields(Plan) if item.init}
    if unknown := sorted(axes.keys() - plan_fields.keys()):
        raise ValueError(f"a plan has no {first_names(unknown)}; its fields are {', '.join(plan_fields)}")
    for name, value in axes.items():
        axis_type = type(AXES[name].default) if name in AXES else tuple if name == "shares" else int
        parts = value if axis_type is tuple and isinstance(value, list | tuple) else [value]
        if any(type(part) is not (int if axis_type is tuple else axis_type) for part in parts):
            raise ValueError(f"{name} of a plan cannot be {value!r}")
    try:
        return Plan.from_json(axes)
    except TypeError:
        raise ValueError("a plan needs micro_batch, the samples of one pass on one rank") from None


def _members(value: object) -> object:
    """The most members of a pack, where ``value`` may say it by a word; YAML reads ``off`` as false."""
    word = "off" if value is False else value
    return PACKS.get(word, word) if isinstance(word, str) else word


class StudySpec(Strict):
    """The specification of a study.

    ``objectives`` are several at once; ``objective`` is then the leading one of them (see ``objectives.Objectives``),
    and otherwise the only one. ``start_with`` lists candidates to try first; ``fixed`` holds parameters of all
    candidates. ``plan`` is the plan of all of them, instead of the one that the planner chooses for each. A candidate
    of ``start_with`` overrides ``fixed``, and the sampler fills in the parameters that it leaves out. Trials of the
    highest ``priority`` are placed first, and none while the study is ``paused``; a ``project`` may have a share of the
    devices and quotas (see ``placement.packing.projects``). ``constraints`` are expressions (see
    ``spaces.expression``) that every candidate satisfies, and ``predicted`` has bounds on what is predicted of it
    before it trains. A candidate that trains to its end is trained ``repeats`` times, with other seeds, and counts by
    the mean. An empty ``space`` is in the user's class, and not known yet (see
    ``sizing.user_workload.with_space``). With ``guard`` trainings check by themselves that their curves do not depend
    on how a batch is divided, nor on interruptions. Up to ``pack`` trials with equal frozen weights
    share a process and make their passes together. Trials use only devices
    named in ``kinds``; an empty list allows all. ``notify`` lists who is told about the study, and what.
    """

    name: Title
    workload: Annotated[str, Field(min_length=1, max_length=300)]
    objective: Objective
    objectives: Annotated[list[Objective], at_most(MAX_OBJECTIVES)] = Field(default=[], max_length=MAX_OBJECTIVES)
    space: Annotated[dict[Name, Dimension], Field(max_length=100), at_most(100)]
    fixed: Annotated[dict[Name, Value], at_most(100)] = Field(default={}, max_length=100)
    constraints: Annotated[list[Constraint], at_most(20)] = Field(default=[], max_length=20)
    predicted: PredictedBounds = PredictedBounds()
    start_with: Annotated[list[Start], at_most(1000)] = Field(default=[], max_length=1000)
    project: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[\w.-]+$")] = DEFAULT_PROJECT
    priority: Annotated[int, Field(ge=-100, le=100)] = 0
    paused: bool = False
    search: SearchOptions = SearchOptions()
    stopping: Stopping = AshaOptions()
    budget: Budget = Budget()
    repeats: Annotated[Integer, Field(ge=1, le=MAX_REPEATS)] = 1
    plan: dict[Name, Any] | None = None
    guard: bool = True
    pack: Annotated[Integer, Field(ge=1, le=MOST_PACKED), BeforeValidator(_members)] = 1
    kinds: Annotated[list[Title], at_most(MOST_KINDS)] = Field(default=[], max_length=MOST_KINDS)
    notify: Annotated[list[Receiver], at_most(MOST_RECEIVERS)] = Field(default=[], max_length=MOST_RECEIVERS)

    @model_validator(mode="before")
    @classmethod
    def _completed(cls, data: Any) -> Any:
        """A study of several objectives has a leading one, and one of a user's class may leave ``space`` out."""
        if isinstance(data, Mapping) and data.get("objectives"):
            data = _with_leading(data)
        if isinstance(data, Mapping) and "stopping" not in data and _all_predicted(data):
            data = {**data, "stopping": {"rule": "none"}}
        if isinstance(data, Mapping) and "space" not in data and is_file(str(data.get("workload"))):
            return {**data, "space": {}}
        return data

    @field_validator("workload")
    @classmethod
    def _well_formed(cls, workload: str) -> str:
        if not re.fullmatch(r"[a-z_][a-z0-9_]*|(?!/)(?!.*\.\.)[\w./-]+\.py:[A-Za-z_]\w*", workload):
            raise ValueError(
                f"{workload!r} is neither a built-in workload nor FILE.py:Class with a path relative to the study, of "
                "letters, digits, _, - and dots, without spaces"
            )
        return workload

    @model_validator(mode="after")
    def _settled(self) -> Self:
        """A sampler's population follows the budget of the submitted study. It stays when the budget is extended, as
        the stored spec has it."""
        if isinstance(sampler := self.search.sampler, Populated):
            self.search = self.search.model_copy(update={"sampler": sampler.settled(self._num_proposed)})
        return self

    @field_validator("plan")
    @classmethod
    def _a_plan(cls, plan: dict[str, Any] | None) -> dict[str, Any] | None:
        if plan is not None:
            plan_from(plan)
        return plan

    @property
    def given_plan(self) -> Plan | None:
        """The plan of all candidates, if the study gives one."""
        return None if self.plan is None else plan_from(self.plan)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        complaint = next(broken_rules(self), None)
        if complaint is not None:
            raise ValueError(complaint)
        return self

    @property
    def files(self) -> list[str]:
        """The workload and the sampler, if they are in the user's own files, as ``FILE.py:name``."""
        return [name for name in (self.workload, self.search.sampler.name) if is_file(name)]

    @property
    def every_objective(self) -> Objectives:
        """The objectives, one or several, as a value that compares trials."""
        return Objectives(tuple(self.objectives or [self.objective]))

    @property
    def targets(self) -> Mapping[str, float]:
        """The value that each objective must reach for the study to end; empty without a target."""
        target = self.budget.target
        if target is None:
            return {}
        return target if isinstance(target, dict) else {self.objective.metric: target}

    @property
    def report_every(self) -> int:
        """Steps from one evaluation to the next; by default each epoch, or a tenth of all steps."""
        every = max(1, self.budget.epochs // MAX_REPORTS) if self.budget.epochs else math.ceil(self.budget.length / 10)
        return self.budget.report_every or every

    @property
    def stopping_rules(self) -> Sequence[RuleOptions]:
        """The stopping rules; each may stop a trial."""
        return self.stopping if isinstance(self.stopping, list) else [self.stopping]

    def to_json(self) -> dict[str, Any]:
        """The study as JSON, with all defaults filled in."""
        return self.model_dump(mode="json")

    def as_given(self) -> dict[str, Any]:
        """The study as JSON, with only what its author has written. Other versions may have other defaults."""
        return self.model_dump(mode="json", exclude_unset=True, exclude=self._derived)

    def shortest(self) -> dict[str, Any]:
        """The study as JSON, without defaults, and without what follows from the rest, so that this may be changed."""
        short = self.model_dump(mode="json", exclude_defaults=True, exclude=self._derived)
        if isinstance(sampler := self.search.sampler, Populated):
            short["search"]["sampler"] = sampler.opened(self._num_proposed).model_dump(mode="json")
        return short

    @property
    def _derived(self) -> set[str]:
        """Fields that follow from others."""
        is_stopping_derived = self.every_objective.are_predicted and isinstance(self.stopping, NeverOptions)
        return ({"objective"} if self.objectives else set()) | ({"stopping"} if is_stopping_derived else set())

    @property
    def _num_proposed(self) -> int:
        """Trials that the sampler proposes."""
        return self.search.one_shot.candidates if self.search.one_shot else self.budget.trials


def _with_leading(data: Mapping[str, Any]) -> Any:
    """The study with ``objective`` as the leading one of its ``objectives``; one of these alone is ``objective``."""
    objectives = data["objectives"]
    if not isinstance(objectives, list) or not all(
        isinstance(objective, Mapping | Objective) for objective in objectives
    ):
        return {**data, "objective": {"metric": "objectives"}}  # the list is refused, in words, with its place
    if len(objectives) == 1 and "objective" not in data:
        return {**{name: value for name, value in data.items() if name != "objectives"}, "objective": objectives[0]}
    if "objective" in data:
        return data
    metrics = [
        str(objective.get("metric") if isinstance(objective, Mapping) else objective.metric) for objective in objectives
    ]
    leading = next((index for index, metric in enumerate(metrics) if not metric.startswith(PREDICTED)), 0)
    return {**data, "objective": objectives[leading]}


def _all_predicted(data: Mapping[str, Any]) -> bool:
    """Whether a study, as its author has written it, has no objective that is measured."""
    objectives = data.get("objectives") or [data.get("objective")]
    if not isinstance(objectives, list):
        return False
    metrics = [
        objective.get("metric") if isinstance(objective, Mapping) else getattr(objective, "metric", None)
        for objective in objectives
    ]
    return all(isinstance(metric, str) and metric.startswith(PREDICTED) for metric in metrics)
