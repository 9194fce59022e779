"""Finds blueprints of candidates by tracing a few of them, and caches the blueprints.

The examples have few blocks. Formulas fitted to them give the exact peaks of all candidates (``scaling.blueprint``).
One candidate of each blueprint is traced in full to check it. If a check fails there is no blueprint, and the
candidates must be traced one by one.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter

from estimators.model import Candidate, Layout
from estimators.scaling.blueprint import Blueprint, fit_blueprint
from estimators.scaling.example import Example, NoBlueprint
from estimators.scaling.formula import PARTS, RANKS, SAMPLES, NotWhole, Points, Whole
from estimators.scaling.model_formulas import PredictedModel
from scamp_service.files import write_atomically
from scamp_service.model import Json
from scamp_service.sizing.screen.groups import FormulaGroup, Task, grouped, split_by_value, variables
from scamp_service.sizing.tracing.options import TracedWorkload
from scamp_service.sizing.tracing.trace_process import TraceFailed

_EXAMPLE, _BLUEPRINT = TypeAdapter(Example), TypeAdapter(Blueprint)

AT_ONCE = 3
"""Most examples that one process traces together: the later ones are faster, because torch keeps what it has found."""


@dataclass(frozen=True, slots=True)
class Blueprints:
    """Blueprints of one kind of layouts."""

    single: Blueprint
    """For steps of one micro-batch."""
    accumulating: Blueprint
    """For steps of several micro-batches."""

    def of(self, *, accumulate: bool) -> Blueprint:
        """The blueprint for layouts that accumulate, or for those that do not."""
        return self.accumulating if accumulate else self.single


@dataclass(frozen=True, slots=True)
class NoBlueprints:
    """Why candidates have no blueprints."""

    reason: str
    parted_by: str | None = None
    """Variable such that each of its values may have blueprints of its own; None: there is none."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """Examples that are being traced."""

    points: list[Json]
    answers: list[Future[Json]]
    """Answers of trace processes, each for ``AT_ONCE`` of the points."""


@dataclass(frozen=True, slots=True)
class _Check:
    """A full trace that a blueprint is compared with."""

    accumulate: bool
    point: Json
    answer: Future[Json]


class BlueprintFinder:
    """Finds blueprints for the candidates of one workload."""

    def __init__(self, workload: TracedWorkload) -> None:
        self._workload, self._code = workload.name, workload.code
        self._tracer, self._pool = workload.tracer, workload.pool
        self._begun: dict[Path, _Asked | NoBlueprints] = {}
        self.num_examples = 0
        self.num_checked = 0

    def batches(self, candidates: Sequence[Json]) -> list[int | str]:
        """Batch of each candidate, or the reason why the workload refuses it. Raises ``TraceFailed``."""
        request = {"params": [dict(params) for params in candidates]}
        file = self._tracer.cache.file_of("candidates", self._workload, self._code, request)
        with contextlib.suppress(OSError, ValueError):
            return list(json.loads(file.read_bytes()))
        self._pool.start()
        answer: list[int | str] = self._ask("candidates", request).result()["candidates"]
        write_atomically(file, json.dumps(answer).encode())
        return answer

    def plain(self, candidates: Mapping[int, Json]) -> list[tuple[FormulaGroup, Blueprint | NoBlueprints]]:
        """Every group of candidates with its blueprint of the plain layout, or with the reason why it has none."""
        groups: list[tuple[FormulaGroup, Blueprint | NoBlueprints]] = []
        waiting = grouped(candidates)
        while waiting:
            tasks: list[tuple[FormulaGroup, Task | NoBlueprints]] = []
            for group in waiting:
                members = [candidates[key] for key in group.members]
                tasks.append((group, self._plain_task(group, members)))
            waiting = []
            answers = iter(self.find([task for _, task in tasks if isinstance(task, Task)]))
            for group, task in tasks:
                answer = task if isinstance(task, NoBlueprints) else next(answers)
                if isinstance(answer, Blueprints):
                    groups.append((group, answer.single))
                elif answer.parted_by is not None:
                    waiting += split_by_value(group, answer.parted_by, candidates)
                else:
                    groups.append((group, answer))
        return groups

    def begin(self, task: Task) -> None:
        """Begin to trace the examples of a task that ``find`` will be asked for, unless there are formulas already."""
        if self.cached(task.group, task.layout_kind) is None:
            self._begun[self._file(task.group, task.layout_kind)] = self._examples(task)

    def find(self, tasks: Sequence[Task]) -> list[Blueprints | NoBlueprints]:
        """The blueprints of each task, or why there are none. All missing examples are traced in parallel."""
        answers: dict[int, Blueprints | NoBlueprints] = {
            place: blueprints for place, task in enumerate(tasks) if (blueprints := self._covering(task)) is not None
        }
        examples = {place: self._examples(task) for place, task in enumerate(tasks) if place not in answers}
        checks: dict[int, list[_Check]] = {}
        for place, begun in examples.items():  # a full trace runs while the next formulas are fitted
            answers[place] = begun if isinstance(begun, NoBlueprints) else self._fitted(tasks[place], begun)
            checks[place] = self._checks(tasks[place], answers[place])
        for place, checked in checks.items():
            answers[place] = self._checked(tasks[place], answers[place], checked)
        return [answers[place] for place in range(len(tasks))]

    def cached(self, group: FormulaGroup, layout_kind: Layout, accumulate: bool = False) -> Blueprint | None:
        """Cached blueprint of a group; None when there is none, or its file is damaged."""
        try:
            return _BLUEPRINT.validate_json(self._file(group, replace(layout_kind, accumulate=accumulate)).read_bytes())
        except (OSError, ValueError):
            return None

    def _covering(self, task: Task) -> Blueprints | None:
        """Cached blueprints that cover whatever is asked, or everything that new examples would cover; or None."""
        single = self.cached(task.group, task.layout_kind)
        accumulating = self.cached(task.group, task.layout_kind, accumulate=True)
        if single is None or accumulating is None:
            return None
        covers = self._covers(single, task) and self._covers(accumulating, task)
        return Blueprints(single, accumulating) if covers else None

    def _covers(self, blueprint: Blueprint, task: Task) -> bool:
        if blueprint.covers(task.columns([{**member, SAMPLES: 1} for member in task.points or task.members])).all():
            return True
        try:
            examples = task.columns(task.examples())
        except NoBlueprint:
            return False
        return all(blueprint.covers(examples))

    def _examples(self, task: Task) -> _Asked | NoBlueprints:
        if (begun := self._begun.pop(self._file(task.group, task.layout_kind), None)) is not None:
            return begun
        try:
            points = task.examples()
        except NoBlueprint as why:
            return _refusal(why)
        num_at_once = self._pool.num_processes
        num = num_at_once * -(-len(points) // (AT_ONCE * num_at_once))
        chunks = [points[len(points) * n // num : len(points) * (n + 1) // num] for n in range(num)]
        return _Asked(points, [self._submit_examples(task.layout_kind, chunk) for chunk in chunks if chunk])

    def _fitted(self, task: Task, traces: _Asked) -> Blueprints | NoBlueprints:
        try:
            pairs = [pair for answer in traces.answers for pair in answer.result()["examples"]]
            self.num_examples += len(pairs)
            both = ([_EXAMPLE.validate_python(pair[number]) for pair in pairs] for number in range(2))
            return Blueprints(*(fit_blueprint(task.columns(traces.points), examples) for examples in both))
        except (NoBlueprint, TraceFailed) as why:
            return _refusal(why)
        finally:
            for answer in traces.answers:
                answer.cancel()  # after one failure, the others are not needed

    def _checks(self, task: Task, blueprints: Blueprints | NoBlueprints) -> list[_Check]:
        if isinstance(blueprints, NoBlueprints):
            return []
        # Both come from the same traces, so of gangs, whose full traces are slow, only the longer log is checked.
        keys = (False, True) if task.layout_kind == Layout() else (True,)
        points = {key: task.to_check(blueprints.of(accumulate=key), accumulate=key) for key in keys}
        requests = {key: _request(replace(task.layout_kind, accumulate=key), point) for key, point in points.items()}
        return [_Check(key, point, self._ask("peak", requests[key])) for key, point in points.items()]

    def _checked(
        self, task: Task, blueprints: Blueprints | NoBlueprints, checks: Sequence[_Check]
    ) -> Blueprints | NoBlueprints:
        """The blueprints, cached, if full traces agree with them."""
        if isinstance(blueprints, NoBlueprints):
            return blueprints
        try:
            for check in checks:
                self._expect_agreement(task, blueprints.of(accumulate=check.accumulate), check)
        except (NoBlueprint, TraceFailed, NotWhole) as why:
            return _refusal(why)
        for accumulate in (False, True):
            file = self._file(task.group, replace(task.layout_kind, accumulate=accumulate))
            write_atomically(file, _BLUEPRINT.dump_json(blueprints.of(accumulate=accumulate)))
        return blueprints

    def _expect_agreement(self, task: Task, blueprint: Blueprint, check: _Check) -> None:
        """Raise ``NoBlueprint`` unless a full trace agrees with the blueprint."""
        point = check.point
        predicted = blueprint.costs(task.columns([point])).curve(0).peak_bytes(point[SAMPLES])
        peak = check.answer.result()["peak"]
        self.num_checked += 1
        if predicted != peak:
            raise NoBlueprint(f"{point} needs {peak:,} bytes, but its blueprint says {predicted:,}")
        if blueprint.model is not None and not self._agrees(task, blueprint, point):
            raise NoBlueprint(f"the units of {point} are not those of its trace")

    def _agrees(self, task: Task, blueprint: Blueprint, point: Json) -> bool:
        """Whether the units, the divisions and the work of a candidate's trace are those of its blueprint."""
        candidate = Candidate(self._workload, self._code, _params_of(point))
        trace = self._pool.submit(lambda process: self._tracer.trace(process, candidate, Layout())).result()
        (model,) = predicted_models(blueprint, task.columns([point]), np.array([trace.batch]))
        return (model.units, model.divisions, model.work, model.num_params) == (
            trace.units,
            trace.divisions,
            trace.work,
            trace.num_params,
        )

    def _plain_task(self, group: FormulaGroup, members: Sequence[Json]) -> Task | NoBlueprints:
        if not group.sizes:
            return NoBlueprints("they do not differ in any size")
        blueprint = self.cached(group, Layout())
        try:
            depth = depth_of(blueprint) if blueprint is not None else self.depth(group, members)
        except TraceFailed as failed:
            return _refusal(failed)
        return Task(group, Layout(), members, [1] * len(members), depth, 1)

    def depth(self, group: FormulaGroup, members: Sequence[Json]) -> str | None:
        """Name of the parameter that is the number of blocks; None when there is none.

        A member with few blocks does not show it, and the others are not known before. So if the first one has few,
        those with the largest value of each size are traced as well.
        """
        largest = {name: max(member[name] for member in members) for name in group.sizes}

        def num_distinct(member: Json) -> int:
            return len({member[name] for name in group.sizes})

        def suits(member: Json) -> tuple[int, int]:
            """Sort key that prefers distinct sizes, then many blocks."""
            return num_distinct(member), sum(member[name] == largest[name] for name in group.sizes)

        first = max(members, key=suits)
        others = [max(members, key=lambda member: (member[name], num_distinct(member))) for name in group.sizes]
        for points in ([first], others):
            requests = [{**point, SAMPLES: 2} for point in points]
            answers = [self._submit_examples(Layout(), [point]) for point in requests]
            for point, answer in zip(requests, answers, strict=True):
                ((example, _),) = answer.result()["examples"]
                if not example["is_whole"]:
                    return next((name for name in group.sizes if point[name] == example["num_blocks"]), None)
        return None

    def _submit_examples(self, layout_kind: Layout, points: Sequence[Json]) -> Future[Json]:
        return self._ask("examples", {"points": [_request(layout_kind, point) for point in points]})

    def _ask(self, request_kind: str, request: Json) -> Future[Json]:
        return self._pool.submit(
            lambda process: self._tracer.ask(process, request_kind, self._workload, self._code, request)
        )

    def _file(self, group: FormulaGroup, layout: Layout) -> Path:
        shared = [group.settings, *group.sizes]
        return self._tracer.cache.file_of("blueprint", self._workload, self._code, shared, str(layout))


def _refusal(why: NoBlueprint | TraceFailed | NotWhole) -> NoBlueprints:
    match why:
        case NoBlueprint():
            return NoBlueprints(str(why), why.parted_by)
        case TraceFailed():
            return NoBlueprints(why.reason_in_one_line)
        case NotWhole():
            return NoBlueprints(str(why))


def _request(layout_kind: Layout, point: Json) -> Json:
    """The request to a trace process for a point."""
    layout = replace(layout_kind, **{name: point[name] for name in variables(layout_kind)})
    return {"params": _params_of(point), "layout": asdict(layout), "micro_batch": point[SAMPLES]}


def _params_of(point: Json) -> Json:
    """The candidate's own parameters."""
    return {name: value for name, value in point.items() if name not in (SAMPLES, RANKS, PARTS)}


def predicted_models(blueprint: Blueprint, points: Points, batches: Whole) -> list[PredictedModel]:
    """The models of architectures with these batches, by a blueprint of the plain layout. Raises ``NotWhole``."""
    assert blueprint.model is not None
    return blueprint.model.predict(points, blueprint.depth.at(points), np.maximum(batches, 4))


def depth_of(blueprint: Blueprint) -> str | None:
    """Name of the parameter that is the number of blocks; None when there is none."""
    depth = blueprint.depth
    is_one_to_one = depth.coefficient == 1 and depth.constant == 0 and len(depth.exponents) == 1
    name, exponent = depth.exponents[0] if is_one_to_one else ("", 0)
    return name if exponent == 1 else None
