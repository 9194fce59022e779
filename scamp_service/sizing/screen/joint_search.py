"""The search for the plans of many candidates together: the formulas for one layout serve all that ask for it.

Each candidate has its own ``planner.PlanChoice``, which asks for the peaks of layouts, one after another. They come
from formulas of the candidate's group, or from its own traces. Some layouts are left out (``LeftOut``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from estimators.devices.kind import DeviceKind
from estimators.model import Candidate, Layout, PeakCurve
from estimators.profile import ModelProfile
from estimators.scaling.blueprint import Blueprint
from estimators.scaling.formula import SAMPLES
from estimators.trace import Trace, profile_of
from placement.model import Cluster
from placement.option import NoPlan, Option
from placement.planning.answers import ChosenPlan, Untraced
from placement.planning.planner import PlanChoice
from placement.planning.question import Question
from scamp_service.model import Json
from scamp_service.sizing.screen.blueprints import BlueprintFinder, Blueprints, NoBlueprints, depth_of, predicted_models
from scamp_service.sizing.screen.groups import FormulaGroup, Task, columns, layout_kind_of, variables
from scamp_service.sizing.screen.screened import Screened
from scamp_service.sizing.tracing.options import TracedWorkload
from scamp_service.sizing.tracing.trace_process import TraceFailed

NO_FORMULA = "they have a single block, or shards that are rounded up as in no example"
LEAST_SHARE = 0.02
"""Formulas for a kind of layouts take a dozen traces, so they are found if this share of a group's members ask."""


@dataclass(slots=True, eq=False)
class OpenCandidate:
    """A candidate whose plan is being chosen.

    It copies the profile of its ``question``. ``curves``, ``refusals`` and ``evaluations`` are those of this copy, and
    grow while the planner asks for layouts.
    ``formulas`` are those of its group if its peaks may come from them; ``why_alone`` is why it is traced itself.
    """

    index: int
    params: Json
    question: Question
    formulas: Formulas | None = None
    why_alone: str = ""
    choice: ChosenPlan | NoPlan | None = None
    untried: tuple[Option, ...] = ()
    curves: dict[Layout, PeakCurve] = field(init=False)
    refusals: dict[Layout, str] = field(init=False)
    evaluations: dict[Layout, PeakCurve] = field(init=False)
    search: PlanChoice = field(init=False)

    def __post_init__(self) -> None:
        profile = self.question.profile
        self.curves, self.evaluations = dict(profile.curves), dict(profile.evaluations)
        self.refusals = dict(profile.refusals)
        own_profile = replace(profile, curves=self.curves, refusals=self.refusals, evaluations=self.evaluations)
        self.question = replace(self.question, profile=own_profile)
        self.search = PlanChoice(self.question)

    @property
    def left_out(self) -> Container[Layout]:
        """The layouts that are not examined."""
        return self.formulas.left_out if self.formulas is not None else ()

    def ask(self) -> ChosenPlan | NoPlan | Untraced:
        """The plan, or the layout whose peaks are needed next."""
        answer = self.search.ask(self.left_out)
        if not isinstance(answer, Untraced):
            self.untried = self.search.passed_over(answer, self.left_out)
        return answer

    @property
    def screened(self) -> Screened:
        batch, assumed = self.question.batch, self.question.profile.assumed
        return Screened(self.params, batch, self.choice, assumed, traced=self.why_alone, untried=self.untried)


@dataclass(slots=True, eq=False)
class Formulas:
    """A group with the blueprints found so far by kind of layouts, or the reason why there are none."""

    group: FormulaGroup
    depth: str | None
    members: list[Json] = field(default_factory=list)
    profiles: list[ModelProfile] = field(default_factory=list)
    blueprints: dict[Layout, Blueprints | NoBlueprints] = field(default_factory=dict)
    left_out: LeftOut = field(default_factory=lambda: LeftOut(set()))


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The layouts that are left out: those without formulas by nature, and these ``layout_kinds``."""

    layout_kinds: set[Layout]

    def __contains__(self, layout: object) -> bool:
        assert isinstance(layout, Layout)
        layout_kind = layout_kind_of(layout)
        return layout_kind is None or layout_kind in self.layout_kinds


class JointSearch:
    """The choices of all candidates, made together: the formulas of one layout serve many of them."""

    def __init__(
        self,
        workload: TracedWorkload,
        finder: BlueprintFinder,
        cluster: Cluster,
        kind: DeviceKind | None,
    ) -> None:
        self._workload, self._tracer, self._pool = workload, workload.tracer, workload.pool
        self._finder = finder
        self._cluster, self._kind = cluster, kind
        self._open: list[OpenCandidate] = []
        self.decided: list[OpenCandidate] = []
        self.refused: dict[int, str] = {}
        self.has_failed = False
        self._num_asking: Counter[tuple[Formulas, Layout]] = Counter()

    def begin(self, candidates: Mapping[int, Json], batches: Mapping[int, int]) -> None:
        """Open all candidates with what formulas of the plain layout, or else their own traces, say of them."""
        without: dict[int, str] = {}
        for group, blueprint in self._finder.plain(candidates):
            if isinstance(blueprint, NoBlueprints):
                without |= dict.fromkeys(set(group.members), blueprint.reason)
            else:
                predicted = set(self._predict(group, candidates, batches, blueprint))
                without |= dict.fromkeys(set(group.members) - predicted, NO_FORMULA)
        traces = self._traces([(candidates[place], Layout()) for place in without])
        for place, trace in zip(without, traces, strict=True):
            if isinstance(trace, str):
                self.refused[place] = trace
            else:
                profile = profile_of({Layout(): trace}, on_gpu=self._cluster.has_gpus)
                self._add(place, candidates[place], trace.batch, profile, why_alone=without[place])

    def advance(self) -> bool:
        """Ask for the plan of every open candidate, and find the peaks that are missing. False once all are decided.

        Traces for formulas begin while others are still asked.
        """
        asking: list[tuple[OpenCandidate, Layout]] = []
        begun: set[tuple[Formulas, Layout]] = set()
        self._num_asking.clear()
        for candidate in self._open:
            answer = candidate.ask()
            if isinstance(answer, Untraced):
                asking.append((candidate, answer.layout))
                if (key := self._missing_formulas(candidate, answer.layout)) is not None and key not in begun:
                    begun.add(key)
                    self._finder.begin(self._task(*key))
            else:
                candidate.choice = answer
                self.decided.append(candidate)
        self._open = [candidate for candidate, _ in asking]
        self.find(asking)
        missing = [(candidate, layout) for candidate, layout in asking if layout not in candidate.left_out]
        traced = self._without_formula(missing)
        answers = self._traces([(candidate.params, layout) for candidate, layout in traced])
        for (candidate, layout), trace in zip(traced, answers, strict=True):
            if isinstance(trace, str):
                candidate.refusals[layout] = trace
            else:
                candidate.curves[layout] = trace.gpu_curve() if self._cluster.has_gpus else trace.host_curve
                if (evaluation := trace.evaluation_curve) is not None:
                    candidate.evaluations[layout] = evaluation
        return bool(self._open)

    def _predict(
        self, group: FormulaGroup, candidates: Mapping[int, Json], batches: Mapping[int, int], blueprint: Blueprint
    ) -> list[int]:
        """Open the members that the blueprint can predict; returns their places."""
        points = columns([{**candidates[key], SAMPLES: 1} for key in group.members], [*group.sizes, SAMPLES])
        predicted = blueprint.predicts(points) & blueprint.covers(points)
        members = [key for key, is_predicted in zip(group.members, predicted, strict=True) if is_predicted]
        points = {name: values[predicted] for name, values in points.items()}
        if not members:
            return []
        costs = blueprint.host_costs(points)
        models = predicted_models(blueprint, points, np.array([batches[key] for key in members]))
        formulas = Formulas(group, depth_of(blueprint))
        for number, (index, model) in enumerate(zip(members, models, strict=True)):
            profile = ModelProfile(
                "", model.num_params, int(costs.states[number]), {Layout(): costs.curve(number)},
                {Layout(): model.work}, units=model.units, divisions=model.divisions,
            )  # fmt: skip
            formulas.members.append(candidates[index])
            formulas.profiles.append(profile)
            self._add(index, candidates[index], batches[index], profile, formulas)
        return members

    def _add(
        self,
        index: int,
        params: Json,
        batch: int,
        profile: ModelProfile,
        formulas: Formulas | None = None,
        why_alone: str = "",
    ) -> None:
        question = Question(profile, batch, self._cluster, self._kind)
        self._open.append(OpenCandidate(index, params, question, formulas, why_alone))

    def _missing_formulas(self, candidate: OpenCandidate, layout: Layout) -> tuple[Formulas, Layout] | None:
        """The group and the kind of layouts, if formulas are missing and enough candidates have asked for them."""
        if candidate.formulas is None:
            return None
        layout_kind = layout_kind_of(layout)
        assert layout_kind is not None, "layouts without formulas are left out"
        key = candidate.formulas, layout_kind
        self._num_asking[key] += 1
        enough = self._num_asking[key] >= LEAST_SHARE * len(candidate.formulas.members)
        return key if enough and layout_kind not in candidate.formulas.blueprints else None

    def find(self, asking: Sequence[tuple[OpenCandidate, Layout]]) -> None:
        """Find the blueprints that are missing for these layouts, unless too few candidates ask for them."""
        points: dict[tuple[Formulas, Layout], list[Json]] = {}
        self._num_asking.clear()
        keys = {self._missing_formulas(candidate, layout) for candidate, layout in asking}
        for candidate, layout in asking:
            layout_kind = layout_kind_of(layout)
            group = candidate.formulas
            if group is not None and layout_kind is not None and layout_kind not in group.blueprints:
                points.setdefault((group, layout_kind), []).append(_point(candidate.params, layout, layout_kind))
        for formulas, layout_kind in points.keys() - keys:
            formulas.left_out.layout_kinds.add(layout_kind)
        tasks = {key: self._task(*key, members) for key, members in points.items() if key in keys}
        for (formulas, layout_kind), answer in zip(tasks, self._finder.find(list(tasks.values())), strict=True):
            formulas.blueprints[layout_kind] = answer

    def _task(self, formulas: Formulas, layout_kind: Layout, points: Sequence[Json] = ()) -> Task:
        usable = [
            (params, profile.divisions)
            for params, profile in zip(formulas.members, formulas.profiles, strict=True)
            if profile.divisions.most_parts % (layout_kind.tp * layout_kind.co_shard) == 0
            and profile.divisions.most_slabs % layout_kind.spatial == 0
        ]
        members, divisions = [member for member, _ in usable], [division for _, division in usable]
        parts = [division.most_parts for division in divisions]
        return Task(formulas.group, layout_kind, members, parts, formulas.depth, len(self._cluster.devices), points)

    def _without_formula(self, asking: Sequence[tuple[OpenCandidate, Layout]]) -> list[tuple[OpenCandidate, Layout]]:
        """Add the peaks that formulas give to the profiles; returns what has to be traced."""
        traced: list[tuple[OpenCandidate, Layout]] = []
        together: dict[tuple[Formulas, Layout], list[OpenCandidate]] = {}
        for candidate, layout in asking:
            if candidate.formulas is None:
                traced.append((candidate, layout))
            else:
                together.setdefault((candidate.formulas, layout), []).append(candidate)
        for (formulas, layout), members in together.items():
            left, why = _left_by_formula(formulas, layout, members)
            for candidate in left:
                candidate.why_alone = candidate.why_alone or why
                traced.append((candidate, layout))
        return traced

    def _traces(self, pairs: Sequence[tuple[Json, Layout]]) -> list[Trace | str]:
        """The trace of each candidate under each layout, or the reason why there is none; equal ones are made once."""
        candidates = [
            (Candidate(self._workload.name, self._workload.code, dict(params)), layout) for params, layout in pairs
        ]
        keys = [self._tracer.cache.key(candidate, layout) for candidate, layout in candidates]
        first = dict(zip(reversed(keys), reversed(candidates), strict=True))
        traces = {key: self._tracer.cached(*pair) for key, pair in first.items()}
        futures = {
            key: self._pool.submit(partial(self._tracer.trace, candidate=candidate, layout=layout))
            for key, (candidate, layout) in first.items()
            if traces[key] is None
        }
        answers: dict[str, Trace | str] = {key: trace for key, trace in traces.items() if trace is not None}
        for key, future in futures.items():
            try:
                answers[key] = future.result()
            except TraceFailed as failed:
                answers[key], self.has_failed = failed.reason, True
        return [answers[key] for key in keys]


def _left_by_formula(
    formulas: Formulas, layout: Layout, members: Sequence[OpenCandidate]
) -> tuple[Sequence[OpenCandidate], str]:
    """Add this layout's peaks to all members that its formula predicts; returns the others, and the reason."""
    layout_kind = layout_kind_of(layout)
    assert layout_kind is not None, "layouts without formulas are left out"
    if isinstance(blueprints := formulas.blueprints[layout_kind], NoBlueprints):
        return members, blueprints.reason
    blueprint = blueprints.of(accumulate=layout.accumulate)
    names = [*formulas.group.sizes, SAMPLES, *variables(layout_kind)]
    points = columns([_point(member.params, layout, layout_kind) for member in members], names)
    predicted = blueprint.predicts(points) & blueprint.covers(points)
    if predicted.any():
        costs = blueprint.host_costs({name: values[predicted] for name, values in points.items()})
        for number, index in enumerate(np.flatnonzero(predicted).tolist()):
            members[index].curves[layout] = costs.curve(number)
    return [member for member, is_predicted in zip(members, predicted, strict=True) if not is_predicted], NO_FORMULA


def _point(params: Json, layout: Layout, layout_kind: Layout) -> Json:
    """A candidate with its degrees under a layout of this kind."""
    return {**params, SAMPLES: 1, **{name: getattr(layout, name) for name in variables(layout_kind)}}
