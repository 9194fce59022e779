"""Finds blueprints of candidates by tracing a few of them, and caches the blueprints.

The examples have few blocks. Formulas fitted to them give the exact peaks of all candidates (``scaling.blueprint``).
One candidate of each blueprint is traced in full to check it. If any check fails there is no blueprint, and the
candidates must be traced one by one.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter

from estimators.model import Layout
from estimators.scaling.blueprint import SAMPLES, Blueprint, fit
from estimators.scaling.example import Example, NoBlueprint
from estimators.scaling.formula import RANKS, Points
from scamp_service.model import Json
from scamp_service.sizing.groups import Group, Task, columns, grouped, parted
from scamp_service.sizing.trace_pool import TracePool
from scamp_service.sizing.trace_process import TraceFailed
from scamp_service.sizing.traces import Tracer, write_atomically

KINDS = tuple(
    Layout(dp_shard=dp_shard, recompute=recompute, accumulate=accumulate)
    for dp_shard in (1, 2)
    for recompute in (False, True)
    for accumulate in (False, True)
)
"""One layout for each blueprint of a group; 2 stands for every number of shards."""

_EXAMPLE, _BLUEPRINT = TypeAdapter(Example), TypeAdapter(Blueprint)


class BlueprintFinder:
    """Finds blueprints for the candidates of one workload."""

    def __init__(self, workload: str, code: str | None, tracer: Tracer, pool: TracePool) -> None:
        """``code`` is the hash of the user's files, which ``tracer`` can fetch; None for a built-in workload."""
        self._workload, self._code, self._tracer, self._pool = workload, code, tracer, pool
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

    def blueprints(
        self, candidates: Mapping[int, Json], degrees: Sequence[int]
    ) -> Iterator[tuple[Group, dict[Layout, Blueprint] | str]]:
        """Yield every group of candidates with its blueprints by the layouts of ``KINDS``, valid for all ``degrees``.

        A group without blueprints comes with the reason instead.
        """
        waiting = grouped(candidates)
        while waiting:
            group = waiting.pop()
            try:
                yield group, self._blueprints(group, candidates, degrees)
            except NoBlueprint as why:
                if why.parted_by is None:
                    yield group, str(why)
                else:
                    waiting += parted(group, why.parted_by, candidates)
            except TraceFailed as failed:
                yield group, " ".join(failed.reason.splitlines())

    def _blueprints(
        self, group: Group, candidates: Mapping[int, Json], degrees: Sequence[int]
    ) -> dict[Layout, Blueprint]:
        if not group.sizes:
            raise NoBlueprint("they do not differ in any size")
        members = [candidates[key] for key in group.members]
        gangs = [degree for degree in degrees if degree > 1]
        kinds = [kind for kind in KINDS if kind.dp_shard == 1 or gangs]
        points = columns(members, group.sizes)
        covering = {
            kind: known
            for kind in kinds
            if (known := self.known(group, kind)) is not None and _covers(known, points, kind, gangs)
        }
        # An example covers steps with and without accumulation at once.
        missing = list(dict.fromkeys(replace(kind, accumulate=False) for kind in kinds if kind not in covering))
        if not missing:
            return covering
        task = Task(group, members, gangs, self._depth(group, members))
        for kind, blueprint in self._traced(task, missing).items():
            if not _covers(blueprint, points, kind, gangs):
                raise NoBlueprint("some are outside of the range of the examples")
            write_atomically(self._file(group, kind), _BLUEPRINT.dump_json(blueprint))
            covering[kind] = blueprint
        return covering

    def _traced(self, task: Task, kinds: Sequence[Layout]) -> dict[Layout, Blueprint]:
        # The slowest first, so that no process is idle at the end.
        wanted = {kind: task.examples(kind) for kind in reversed(kinds)}
        asked = {kind: [self._submit("examples", kind, one) for one in points] for kind, points in wanted.items()}
        try:
            return self._confirmed(task, wanted, asked)
        finally:
            for answer in itertools.chain(*asked.values()):
                answer.cancel()  # after one failure, the others are not needed

    def _confirmed(
        self, task: Task, wanted: Mapping[Layout, Sequence[Json]], asked: Mapping[Layout, Sequence[Future[Json]]]
    ) -> dict[Layout, Blueprint]:
        """Blueprints fitted to the examples, each checked by the full trace of a candidate. Raises ``NoBlueprint``."""
        found, checks = {}, []
        for kind, answers in asked.items():
            pairs = [answer.result()["examples"] for answer in answers]
            self.num_examples += len(pairs)
            for accumulate in (False, True):
                layout = replace(kind, accumulate=accumulate)
                examples = [_EXAMPLE.validate_python(pair[accumulate]) for pair in pairs]
                found[layout] = fit(task.columns(wanted[kind], kind), examples)
                point = task.to_check(layout, found[layout])
                checks.append((layout, point, self._submit("peak", layout, point)))
        for layout, point, answer in checks:
            predicted = found[layout].costs(task.columns([point], layout)).curve(0).peak_bytes(point[SAMPLES])
            self.num_checked += 1
            if predicted != (peak := answer.result()["peak"]):
                raise NoBlueprint(f"{point} needs {peak:,} bytes, but its blueprint says {predicted:,}")
        return found

    def _depth(self, group: Group, members: Sequence[Json]) -> str | None:
        """Name of the parameter that is the number of blocks; None when there is none."""
        largest = {name: max(one[name] for one in members) for name in group.sizes}

        def suits(one: Json) -> tuple[int, int]:
            """Sort key that prefers distinct sizes, then many blocks."""
            return len({one[name] for name in group.sizes}), sum(one[name] == largest[name] for name in group.sizes)

        point = {**sorted(members, key=suits)[-1], SAMPLES: 2}
        one, _ = self._submit("examples", Layout(), point).result()["examples"]
        return next((name for name in group.sizes if point[name] == one["num_blocks"]), None)

    def _submit(self, what: str, kind: Layout, point: Json) -> Future[Json]:
        params = {name: value for name, value in point.items() if name not in (SAMPLES, RANKS)}
        layout = replace(kind, dp_shard=point.get(RANKS, 1))
        request = {"params": params, "layout": asdict(layout), "micro_batch": point[SAMPLES]}
        return self._ask(what, request)

    def _ask(self, what: str, request: Json) -> Future[Json]:
        return self._pool.submit(lambda process: self._tracer.ask(process, what, self._workload, self._code, request))

    def known(self, group: Group, kind: Layout) -> Blueprint | None:
        """Cached blueprint of a group; None when there is none, or its file is damaged."""
        try:
            return _BLUEPRINT.validate_json(self._file(group, kind).read_bytes())
        except (OSError, ValueError):
            return None

    def _file(self, group: Group, kind: Layout) -> Path:
        shared = [group.settings, *group.sizes]
        return self._tracer.cache.file_of("blueprint", self._workload, self._code, shared, str(kind))


def _covers(blueprint: Blueprint, points: Points, kind: Layout, gangs: Sequence[int]) -> bool:
    ranks = [np.array([side(gangs)]) for side in (min, max)] if kind.dp_shard > 1 else [np.array([1])]
    num = len(next(iter(points.values())))
    return all(
        blueprint.covers({**points, **({RANKS: np.repeat(count, num)} if kind.dp_shard > 1 else {})}).all()
        for count in ranks
    )
