"""The study as a user writes it, and the rules that its fields must follow together.

Not here: reading text (``parse``), loading user files, the database, and the names of the built-in workloads.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from estimators.axes import AXES
from estimators.model import Plan
from placement.packing.projects import DEFAULT_PROJECT
from scamp_service.study.objective import PREDICTED, Objective
from scamp_service.study.objectives import Objectives
from scamp_service.study.one_shot import SUPERNET, OneShot
from scamp_service.study.predicted import PredictedBounds
from scamp_service.study.sampler_options import EvolutionOptions, Populated, Sampler, TpeOptions
from scamp_service.study.spaces.constraints import ParameterConstraints
from scamp_service.study.spaces.points import Points
from scamp_service.study.spaces.slots import Slot, existing_values, flat, nested, slots_of
from scamp_service.study.spaces.space import Dimension, Range, Repeat, ends
from scamp_service.study.starts import start_complaints
from scamp_service.study.stopping import (
    AshaOptions,
    NeverOptions,
    RuleOptions,
    Stopping,
)
from scamp_service.study.values import Given, Integer, Name, Number, Strict, Title, Value, at_most, number_of
from scamp_service.study.workload_names import is_file
from workloads.options import BOTH_AVERAGES, wrong_value
from workloads.options import NAMES as OPTIONS

MAX_TRIALS = 100_000
MAX_REPORTS = 100_000  # evaluations of one trial: each is a row
TRACE_SECONDS = 60
"""Seconds of processor time for a trace, unless the user allows more."""
MAX_OBJECTIVES = 8


def _target(value: Any) -> Any:
    """A number, or a mapping from metrics to numbers."""
    if isinstance(value, Mapping):
        if not value or len(value) > MAX_OBJECTIVES or not all(isinstance(name, str) for name in value):
            raise ValueError("must be a number, or a mapping from metrics to numbers")
        return {name: number_of(one) for name, one in value.items()}
    return number_of(value)


Target = Annotated[Any, BeforeValidator(_target)]
Start = Annotated[dict[str, Given], at_most(200)]
Constraint = Annotated[str, Field(min_length=1, max_length=500)]


class Earlier(Strict):
    """An earlier study whose trials count as history: the newest with this name, or the one with this id.

    ``weight`` is the share of its trials that count.
    """

    study: Title | Annotated[Integer, Field(ge=1)]
    weight: Annotated[Number, Field(gt=0, le=1)] = 1.0


class Filter(Strict):
    """Each trial is the best of ``of`` proposals by a number that costs no training (``workloads.sandbox.proxies``)."""

    proxy: Literal["parameters", "flops", "grad_norm", "synflow", "jacob_cov"]
    of: Annotated[Integer, Field(ge=2, le=32)] = 4


class SearchOptions(Strict):
    """How candidates are proposed. The same seed and history give the same candidates."""

    sampler: Sampler = TpeOptions()
    seed: Annotated[Integer, Field(ge=0, le=2**31)] = 0
    history: Annotated[list[Earlier], at_most(20)] = Field(default=[], max_length=20)
    filter: Filter | None = None
    one_shot: OneShot | None = None

    @property
    def inherits(self) -> bool:
        """Whether candidates may begin with weights of earlier ones."""
        return self.one_shot is not None or (isinstance(self.sampler, EvolutionOptions) and self.sampler.inherit)


class Terminator(Strict):
    """Ends a study once little is left to gain: by Optuna's bound on the regret, which holds with high probability.

    The regret is how much better the best candidate of the space is than the best that was found. It is bounded from
    ``min_trials`` completed trials on, and the study ends once the bound is at most ``regret``.
    """

    regret: Annotated[Number, Field(gt=0, le=10**9)]
    min_trials: Annotated[Integer, Field(ge=2, le=MAX_TRIALS)] = 20


class Budget(Strict):
    """Limits of a study. It ends when it has tried all ``trials``, or earlier.

    It also ends ``seconds`` after it was submitted, once its trials have held devices for ``device_hours`` (hours ×
    devices), or once one has reported the ``target``, with several objectives a mapping from metrics to values, or once
    the ``terminator`` expects little more; what runs then counts with its newest value. ``steps`` are the optimizer
    steps of one trial, with an evaluation after every ``report_every`` of them. With ``epochs`` a trial makes so many
    passes over its training samples instead: then steps, reports and rungs are counted in epochs, each of as many
    optimizer steps as the candidate's batch needs. ``max_concurrent`` limits the trials that run at once. A trial may
    be lost ``max_lost`` times without a new checkpoint in between, and run out of memory ``max_oom`` times, before it
    fails. An attempt that makes no progress for ``stall_seconds`` is ended; without a value it is 50 of its steps, at
    least 300 s, and 900 s before the first steps are timed. A trace of a candidate may take ``trace_seconds`` of
    processor time.
    """

    trials: Annotated[Integer, Field(ge=1, le=MAX_TRIALS)] = 20
    seconds: Annotated[Number, Field(gt=0, le=10**9)] | None = None
    device_hours: Annotated[Number, Field(gt=0, le=10**9)] | None = None
    target: Target | None = None
    terminator: Terminator | None = None
    steps: Annotated[Integer, Field(ge=1, le=10**9)] = 100
    epochs: Annotated[Integer, Field(ge=1, le=10**6)] | None = None
    report_every: Annotated[Integer, Field(ge=1)] | None = None
    max_concurrent: Annotated[Integer, Field(ge=1)] | None = None
    max_lost: Annotated[Integer, Field(ge=0)] = 5
    max_oom: Annotated[Integer, Field(ge=0)] = 5
    stall_seconds: Annotated[float, Field(gt=0, le=10**7)] | None = None
    trace_seconds: Annotated[Integer, Field(ge=1, le=3600)] = TRACE_SECONDS

    @property
    def unit(self) -> Literal["step", "epoch"]:
        """The unit of ``steps``: optimizer steps, or passes over the training samples."""
        return "step" if self.epochs is None else "epoch"

    @model_validator(mode="before")
    @classmethod
    def _in_epochs(cls, data: Any) -> Any:
        """A trial of so many epochs has as many steps."""
        if not isinstance(data, Mapping) or not isinstance(data.get("epochs"), int):
            return data
        if data.get("steps", data["epochs"]) != data["epochs"]:
            raise ValueError("steps and epochs both say how long a trial is; keep one of them")
        return {**data, "steps": data["epochs"]}

    @model_validator(mode="after")
    def _reported(self) -> Self:
        every = self.report_every
        if every is not None and every > self.steps:
            raise ValueError(
                f"report_every ({every}) must not exceed {self.unit}s ({self.steps}); otherwise nothing is reported"
            )
        if every is not None and self.steps // every > MAX_REPORTS:
            raise ValueError(
                f"{self.steps} {self.unit}s with a report every {every} make more than {MAX_REPORTS} reports a trial; "
                f"set report_every to {math.ceil(self.steps / MAX_REPORTS)} or more"
            )
        return self


def plan_from(given: Mapping[str, Any]) -> Plan:
    """The plan with these fields, as ``scamp plan --json`` prints them. Raises ``ValueError`` if it is none."""
    known = {item.name: item for item in fields(Plan) if item.init}
    if unknown := sorted(given.keys() - known.keys()):
        raise ValueError(f"a plan has no {_listed(unknown)}; its fields are {', '.join(known)}")
    for name, value in given.items():
        wanted = type(AXES[name].default) if name in AXES else int
        parts = value if wanted is tuple and isinstance(value, list | tuple) else [value]
        if any(type(part) is not (int if wanted is tuple else wanted) for part in parts):
            raise ValueError(f"{name} of a plan cannot be {value!r}")
    try:
        return Plan.from_json(given)
    except TypeError:
        raise ValueError("a plan needs micro_batch, the samples of one pass on one rank") from None


class StudySpec(Strict):
    """The specification of a study.

    ``objectives`` are several at once; ``objective`` is then the leading one of them (see ``objectives.Objectives``),
    and otherwise the only one. ``start_with`` lists candidates to try first; ``fixed`` holds parameters of all
    candidates. ``plan`` is the plan of all of them, instead of the one that the planner chooses for each. A candidate
    of ``start_with`` overrides ``fixed``, and the sampler fills in the parameters that it
    leaves out. Trials of the highest ``priority`` are placed first; a ``project`` may have a share of the devices
    and quotas (see ``placement.packing.projects``). ``constraints`` are expressions (see ``spaces.expression``)
    that every candidate satisfies, and ``predicted`` has bounds on what is predicted of it before it trains. An
    empty ``space`` is in the user's class, and not known yet (see ``sizing.submission_check.with_space``).
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
    search: SearchOptions = SearchOptions()
    stopping: Stopping = AshaOptions()
    budget: Budget = Budget()
    plan: dict[Name, Any] | None = None

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
                f"{workload!r} is neither a built-in workload nor FILE.py:Class with a path relative to the study"
            )
        return workload

    @model_validator(mode="after")
    def _settled(self) -> Self:
        """A sampler's population follows the budget of the submitted study. It stays when the budget is extended, as
        the stored spec has it."""
        if isinstance(sampler := self.search.sampler, Populated):
            one_shot = self.search.one_shot
            num_proposed = one_shot.candidates if one_shot else self.budget.trials
            self.search = self.search.model_copy(update={"sampler": sampler.settled(num_proposed)})
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
        complaint = next(self._complaints(), None)
        if complaint is not None:
            raise ValueError(complaint)
        return self

    def _complaints(self) -> Iterator[str]:
        """Violated rules between fields; only the first is reported."""
        yield from self._objective_complaints()
        if not self.space:
            if not is_file(self.workload):
                yield ("space: the search space is empty; add at least one parameter with choice, or with low and high")
            return
        both = sorted(set(self.space) & set(self.fixed))
        if both:
            yield f"{_listed(both)}: in both space and fixed; keep one"
        try:
            slots, constraints = slots_of(self.space), ParameterConstraints(self.constraints)
        except ValueError as error:
            yield str(error)
            return
        sampler = self.search.sampler
        if sampler.exhaustive:
            yield from _grid_complaints(sampler.name, slots)
            if any(slot.dimension.prior for slot in slots):
                yield f"{sampler.name} search tries every point, and has no use for a prior"
            if self.search.filter:
                yield f"{sampler.name} search tries every point, and has no use for a filter"
        if self.constraints and not sampler.constraints:
            yield f"{sampler.name} knows no constraints; grid does"
        yield from self._constraint_complaints(slots, constraints)
        for position, start in enumerate(self.start_with):
            yield from self._start_complaints(f"start_with[{position}]", start, slots, constraints)
        if self.budget.terminator is not None and self.search.one_shot is not None:
            yield "budget.terminator is for searches that train each candidate; leave it out, or search.one_shot"
        if self.budget.terminator is not None and all(slot.dimension.when for slot in slots):
            yield "budget.terminator needs a parameter that every candidate has, and all of these have conditions"
        if len(self.start_with) > self.budget.trials:
            yield f"start_with has {len(self.start_with)} candidates, but the budget allows {self.budget.trials} trials"
        yield from self._stopping_complaints()
        yield from self._one_shot_complaints()
        yield from self._batch_complaints()
        yield from self._option_complaints()

    def _objective_complaints(self) -> Iterator[str]:
        every = self.every_objective
        if self.objectives and self.objective != every.leading:
            yield (
                f"objective is {self.objective.metric!r}, but the leading one of objectives is "
                f"{every.leading.metric!r}; give objective or objectives, not both"
            )
        if len(set(every.names)) < len(every.names):
            yield "objectives: each must have another metric"
        if len(every.each) > 1 and any(one.at == "best" for one in every.each):
            yield "at: best is for studies with one objective; with several, a trial counts by its last report"
        yield from self._target_complaints()
        if every.are_predicted and not all(isinstance(rule, NeverOptions) for rule in self.stopping_rules):
            yield (
                "stopping: all objectives are predicted, so nothing that a trial reports decides; leave "
                "stopping out, or add a measured objective"
            )
        if every.are_predicted and self.search.one_shot is not None:
            yield "search.one_shot needs a measured objective, which it ranks candidates by"
        if every.is_several:
            yield from self._several_complaints()
        for one in every.each:
            if one.metric.startswith(PREDICTED) and one.predicted not in PredictedBounds.model_fields:
                close = get_close_matches(one.predicted, list(PredictedBounds.model_fields), 1, 0.5)
                hint = f"; did you mean {PREDICTED}{close[0]}?" if close else ""
                known = ", ".join(PredictedBounds.model_fields)
                yield f"objective {one.metric!r}: nothing like that is predicted, only {known}{hint}"

    def _several_complaints(self) -> Iterator[str]:
        """Options that make no sense with several objectives."""
        sampler = self.search.sampler.name
        if not self.search.sampler.several_objectives:
            yield (
                f"search.sampler: {sampler} knows one objective, and this study has {len(self.objectives)}; take "
                "nsga2, nsga3, tpe, gp or another"
            )
        if self.search.one_shot is not None:
            yield (
                f"search.one_shot ranks candidates by one value, and this study has {len(self.objectives)} objectives; "
                "leave it out"
            )
        for rule in self.stopping_rules:
            if rule.one_objective:
                yield (
                    f"stopping: {rule.rule} judges a trial by one value, and this study has {len(self.objectives)} "
                    "objectives; take asha, hyperband, median, percentile or pbt, which compare trials by their rank"
                )
        if self.budget.terminator is not None:
            yield "budget.terminator bounds the regret of one objective, and this study has several; leave it out"
        if isinstance(self.budget.target, int | float):
            yield (
                "budget.target: give a value for each objective that matters, such as "
                f"{{{self.objectives[0].metric}: …, {self.objectives[1].metric}: …}}"
            )

    def _target_complaints(self) -> Iterator[str]:
        names = self.every_objective.names
        for metric in self.targets:
            if metric not in names:
                yield f"budget.target: {metric} is no objective of this study; they are {_listed(list(names))}"

    def _constraint_complaints(self, slots: tuple[Slot, ...], constraints: ParameterConstraints) -> Iterator[str]:
        known = {*self.space, *self.fixed}
        for name in sorted(constraints.names - known):
            close = get_close_matches(name, known, 1, 0.5)
            hint = f"; did you mean {close[0]}?" if close else ""
            yield f"constraints name {name!r}, which neither space nor fixed defines{hint}"
        if not constraints:
            return
        for end in (0, -1):  # two candidates, to see that the expressions suit the types of the parameters
            values = existing_values(slots, lambda slot, end=end: ends(slot.dimension)[end])  # type: ignore[misc]
            try:
                constraints.check({**self.fixed, **nested(slots, values, list(self.space))})
            except ValueError as error:
                yield str(error)

    def _start_complaints(
        self, where: str, start: Mapping[str, Any], slots: tuple[Slot, ...], constraints: ParameterConstraints
    ) -> Iterator[str]:
        unknown = sorted(set(start) - set(self.space) - set(self.fixed))
        if unknown:
            yield f"{where} has {_listed(unknown)}, which neither space nor fixed defines"
        wrong = list(start_complaints(where, start, self.space, slots))
        yield from wrong
        if not wrong and not unknown:
            given = flat(slots, start)
            complete = {name for name in start if self._is_complete(name, slots, given)}
            values = {
                name: value for name, value in {**self.fixed, **start}.items() if name in {*complete, *self.fixed}
            }
            if broken := constraints.broken(values):
                yield f"{where} does not satisfy the constraint {broken[0].source!r}"

    @staticmethod
    def _is_complete(name: str, slots: tuple[Slot, ...], given: Mapping[str, Any]) -> bool:
        """Whether a start gives every value of this parameter, which may be a list of blocks."""
        own = (slot for slot in slots if slot.path[0] == name)
        return all(slot.name in given for slot in own if slot.exists(given))

    def _stopping_complaints(self) -> Iterator[str]:
        rules = self.stopping_rules
        for rule in rules:
            yield from rule.complaints(self.space, self.budget.steps, self.report_every, self.budget.unit)
        for name, count in Counter(rule.rule for rule in rules if rule.once_because).items():
            if count > 1:
                why = next(rule.once_because for rule in rules if rule.rule == name)
                yield f"stopping: {count} rules {name}; {why}, so keep one"

    def _one_shot_complaints(self) -> Iterator[str]:
        one_shot, sampler = self.search.one_shot, self.search.sampler
        if one_shot is None:
            return
        if any(not isinstance(rule, NeverOptions) for rule in self.stopping_rules):
            yield "one_shot decides by itself who trains: set stopping to {rule: none}"
        if sampler.exhaustive:
            yield f"{sampler.name} search ends by itself; one_shot needs a sampler that does not, such as random"
        if isinstance(sampler, EvolutionOptions) and sampler.inherit:
            yield "candidates of one_shot inherit from the supernet: remove the option inherit of evolution"
        if self.every_objective.is_several or self.every_objective.are_predicted:
            yield "one_shot ranks candidates by one objective that evaluate returns"
        if self.objective.metric == "train_loss":
            yield "one_shot scores candidates without training, so train_loss cannot be the objective"
        if self.budget.target is not None:
            yield "budget.target cannot be used with one_shot, as the supernet might reach it"
        if SUPERNET in {*self.space, *self.fixed}:
            yield f"{SUPERNET}: one_shot sets this parameter itself; remove it from the study"
        if self.budget.trials < one_shot.num_trials:
            yield (
                f"budget.trials ({self.budget.trials}) must be at least {one_shot.num_trials}: the supernet, "
                f"{one_shot.candidates} candidates and the best {one_shot.best}, trained alone"
            )

    def _batch_complaints(self) -> Iterator[str]:
        """Check ``batch``, the number of samples of a step."""
        for value in self._values_of("batch"):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                yield f"batch is the number of samples per optimizer step, an integer of at least 1; got {value!r}"

    def _option_complaints(self) -> Iterator[str]:
        """Check the other parameters that ScaMP itself reads."""
        for name in OPTIONS:
            yield from filter(None, (wrong_value(name, value) for value in self._values_of(name)))
        for start in self._values_of("swa_start"):
            if start is not None and self.budget.epochs is None and start >= self.budget.steps:
                yield f"swa_start ({start}) must be less than budget.steps ({self.budget.steps}): it averages nothing"
        if {"ema_decay", "swa_start"} <= self.fixed.keys():
            yield BOTH_AVERAGES

    def _values_of(self, name: str) -> list[Any]:
        """Values that candidates have of a parameter: those that the study names, and the ends of a range."""
        values: list[Any] = [candidate[name] for candidate in (self.fixed, *self.start_with) if name in candidate]
        dimension = self.space.get(name)
        if isinstance(dimension, Repeat):
            values.append([])
        elif dimension is not None:
            values += ends(dimension)
        return values

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
        every = max(1, self.budget.epochs // MAX_REPORTS) if self.budget.epochs else math.ceil(self.budget.steps / 10)
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
        return self.model_dump(mode="json", exclude_unset=True)


def _with_leading(data: Mapping[str, Any]) -> Any:
    """The study with ``objective`` as the leading one of its ``objectives``; one of these alone is ``objective``."""
    given = data["objectives"]
    if not isinstance(given, list) or not all(isinstance(one, Mapping | Objective) for one in given):
        return {**data, "objective": {"metric": "objectives"}}  # the list is refused, in words, with its place
    if len(given) == 1 and "objective" not in data:
        return {**{name: value for name, value in data.items() if name != "objectives"}, "objective": given[0]}
    if "objective" in data:
        return data
    metrics = [str(one.get("metric") if isinstance(one, Mapping) else one.metric) for one in given]
    leading = next((place for place, metric in enumerate(metrics) if not metric.startswith(PREDICTED)), 0)
    return {**data, "objective": given[leading]}


def _all_predicted(data: Mapping[str, Any]) -> bool:
    """Whether a study, as its author has written it, has no objective that is measured."""
    given = data.get("objectives") or [data.get("objective")]
    if not isinstance(given, list):
        return False
    metrics = [one.get("metric") if isinstance(one, Mapping) else getattr(one, "metric", None) for one in given]
    return all(isinstance(metric, str) and metric.startswith(PREDICTED) for metric in metrics)


def _listed(names: list[str], most: int = 10) -> str:
    """The first ``most`` names, because a study may be wrong about a hundred thousand of them."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(name[:100] for name in names[:most]) + more


def _grid_complaints(sampler: str, slots: tuple[Slot, ...]) -> Iterator[str]:
    open_ended = [slot.name for slot in slots if _is_continuous(slot)]
    if open_ended:
        yield f"{sampler} search needs choices or stepped ranges; continuous or log: {_listed(open_ended)}"
        return
    size = Points(slots, MAX_TRIALS).count
    if size > MAX_TRIALS:
        yield f"the grid has {size} points; at most {MAX_TRIALS} are allowed; take larger steps or fewer choices"


def _is_continuous(slot: Slot) -> bool:
    dimension = slot.dimension
    return isinstance(dimension, Range) and (dimension.log or dimension.num_values is None)
