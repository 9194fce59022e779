"""Screens the candidates of a space: predicts the plans of each at every degree, most of them without their own trace.

The policy is the same as in a study. Peaks count tensors, exactly. On a GPU the margin covers what the allocator needs
beyond them; ``estimate`` replays the allocator for one candidate.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from estimators.devices.kind import DeviceKind
from estimators.model import Layout, PeakCurve
from estimators.scaling.blueprint import Blueprint, Costs
from estimators.scaling.formula import RANKS, NotWhole
from placement.model import Cluster
from placement.planning.options import ChosenPlan, NoPlan, Option, Untraced
from placement.planning.planner import list_options, pick
from scamp_service.errors import InvalidInput
from scamp_service.model import Json
from scamp_service.sizing.blueprints import BlueprintFinder
from scamp_service.sizing.estimate import Estimator, OneBlob
from scamp_service.sizing.groups import Group, columns
from scamp_service.sizing.trace_pool import TracePool
from scamp_service.sizing.trace_process import TraceFailed
from scamp_service.sizing.traces import Tracer
from scamp_service.sizing.under_way import TRACE_SECONDS, UnderWay
from scamp_service.study.user_code import check_code


@dataclass(frozen=True, slots=True)
class Screened:
    """A candidate, its best plan on one rank and under FSDP at each degree with and without recompute, and a choice.

    The choice is that of a study if the candidate was traced alone, or if one rank fits without recompute. Otherwise it
    is the option with the fewest ranks, and a study may find a cheaper plan. ``refused`` is the reason why the
    workload refuses the parameters; then there are no ``options`` and no ``choice``.
    """

    params: Json
    batch: int
    options: Sequence[Option] = ()
    choice: ChosenPlan | NoPlan | None = None
    refused: str = ""
    by_formula: bool = False

    @property
    def may_be_cheaper(self) -> bool:
        """Whether a study may choose a plan with fewer device-seconds."""
        plan = self.choice.plan if isinstance(self.choice, ChosenPlan) else None
        return self.by_formula and plan is not None and (plan.world_size > 1 or plan.recompute)

    def to_json(self) -> dict[str, Any]:
        """One candidate of ``scamp screen --json``."""
        chosen = self.choice if isinstance(self.choice, ChosenPlan) else None
        return {
            "params": dict(self.params),
            "batch": self.batch,
            "refused": self.refused,
            "plan": chosen.plan.to_json() if chosen else None,
            "peak_bytes": chosen.prediction.peak_bytes if chosen else None,
            "reserved_mib": chosen.prediction.reserved_mib if chosen else None,
            "reason": self.choice.reason if self.choice else self.refused,
            "may_be_cheaper": self.may_be_cheaper,
            "options": [
                {
                    "plan": option.plan.to_json(),
                    "fits": option.fits,
                    "lower_bound": option.is_bound,
                    "peak_bytes": option.prediction.peak_bytes,
                    "reserved_mib": option.prediction.reserved_mib,
                }
                for option in self.options
            ],
        }


@dataclass(frozen=True, slots=True)
class Screening:
    """All candidates in their order, and how they were screened.

    ``alone`` holds, by position, why a candidate was traced one by one.
    """

    candidates: Sequence[Screened]
    num_examples: int
    num_checked: int
    alone: Mapping[int, str]


NO_FORMULA = "they have a single block, or shards that are rounded up unlike in any example"
OTHER_PLANS = "they fit neither on one rank nor under FSDP, and there are no formulas for other plans"


def screen(
    workload: str,
    code: bytes | None,
    candidates: Sequence[Json],
    cluster: Cluster,
    cache_dir: Path,
    kind: DeviceKind | None = None,
    tell: Callable[[str], None] = lambda progress: None,
    *,
    seconds: int = TRACE_SECONDS,
    under_way: UnderWay | None = None,
) -> Screening:
    """Screen candidates on ``cluster``, whose devices are of ``kind``. Raises ``InvalidInput``.

    ``code`` is the zip of the user's files. ``tell`` gets messages on the progress. A trace has ``seconds`` of
    processor time; ``under_way`` is told what is traced.
    """
    check_code(workload, code, functions=True)
    tracer = Tracer(OneBlob(code or b""), cache_dir, seconds, on_cuda=cluster.has_gpus, under_way=under_way)
    with TracePool() as pool:
        finder = BlueprintFinder(workload, hashlib.sha256(code).hexdigest() if code else None, tracer, pool)
        batches = _batches(finder, candidates)
        sound = {place: candidates[place] for place, batch in enumerate(batches) if isinstance(batch, int)}
        tell(f"looking for formulas for {len(sound)} candidates")
        found, alone = _by_formulas(finder, sound, batches, cluster)
        for why, num in Counter(alone.values()).items():
            tell(f"no formulas for {num} candidates, so they are traced one by one: {why}")
        if alone:
            estimator = Estimator(workload, code, cache_dir, kind, pool=pool, seconds=seconds, under_way=under_way)
            estimates = [(place, estimator.estimate(candidates[place], cluster)) for place in alone]
            found |= {place: Screened(one.params, one.batch, one.options, one.choice) for place, one in estimates}
    refused = {place: batch for place, batch in enumerate(batches) if isinstance(batch, str)}
    found |= {place: Screened(candidates[place], 0, refused=why) for place, why in refused.items()}
    in_order = [found[place] for place in range(len(candidates))]
    return Screening(in_order, finder.num_examples, finder.num_checked, alone)


def _by_formulas(
    finder: BlueprintFinder, sound: Mapping[int, Json], batches: Sequence[int | str], cluster: Cluster
) -> tuple[dict[int, Screened], dict[int, str]]:
    """(candidates predicted by formulas, reasons why the others have none), both by position."""
    degrees = [1 << power for power in range(len(cluster.devices).bit_length())]
    found: dict[int, Screened] = {}
    alone: dict[int, str] = {}
    for group, blueprints in finder.blueprints(sound, degrees):
        try:
            peaks = _peaks(group, sound, blueprints, degrees) if not isinstance(blueprints, str) else {}
        except NotWhole as reason:
            peaks, blueprints = {}, str(reason)
        decided = {place: _decided(sound[place], batches[place], one, cluster) for place, one in peaks.items()}
        found |= {place: one for place, one in decided.items() if one is not None}
        alone |= {place: OTHER_PLANS for place, one in decided.items() if one is None}
        why = blueprints if isinstance(blueprints, str) else NO_FORMULA
        alone |= dict.fromkeys(set(group.members) - set(peaks), why)
    return found, alone


def _batches(finder: BlueprintFinder, candidates: Sequence[Json]) -> list[int | str]:
    try:
        return finder.batches(candidates)
    except TraceFailed as failed:
        raise InvalidInput(failed.reason) from None


def _decided(params: Json, batch: int | str, peaks: _Peaks, cluster: Cluster) -> Screened | None:
    """The candidate's plan on one rank, or under FSDP; None if none fits, and other plans must be traced."""
    assert isinstance(batch, int)
    options = list_options(peaks, batch=batch, cluster=cluster)
    known = [option for option in options if isinstance(option, Option)]
    assert len(known) == len(options), "blueprints know all layouts"
    choice = pick(known, batch=batch, cluster=cluster)
    if isinstance(choice, NoPlan) and not all(option.states_alone for option in known):
        return None
    assert not isinstance(choice, Untraced)
    return Screened(params, batch, known, choice, by_formula=True)


def _peaks(
    group: Group, candidates: Mapping[int, Json], blueprints: Mapping[Layout, Blueprint], degrees: Sequence[int]
) -> dict[int, _Peaks]:
    """Peaks of the members that the blueprints can predict, under every layout that a planner may consider."""
    points = columns([candidates[key] for key in group.members], group.sizes)
    widest = {**points, RANKS: np.full(len(group.members), degrees[-1])}  # smaller degrees divide whatever it divides
    predicted = np.logical_and.reduce([blueprint.predicts(widest) for blueprint in blueprints.values()])
    points = {name: values[predicted] for name, values in points.items()}
    members = [key for key, is_predicted in zip(group.members, predicted, strict=True) if is_predicted]
    known: dict[Layout, tuple[Costs, int]] = {}
    for kind, blueprint in blueprints.items():
        counts = degrees[1:] if kind.dp_shard > 1 else degrees[:1]
        repeated = {name: np.tile(values, len(counts)) for name, values in points.items()}
        with threadpool_limits(1, "blas"):  # small products: on a busy CPU, threads only wait for each other
            costs = blueprint.costs({**repeated, RANKS: np.repeat(counts, len(members))})
        for number, degree in enumerate(counts):
            known[replace(kind, dp_shard=degree)] = costs, number * len(members)
    plain, _ = known[Layout()]
    return {key: _Peaks(int(plain.states[place]), _Curves(known, place)) for place, key in enumerate(members)}


@dataclass(frozen=True, slots=True)
class _Peaks:
    """Implements ``estimators.model.Peaks``."""

    state_bytes: int
    curves: Mapping[Layout, PeakCurve]


class _Curves(dict[Layout, PeakCurve]):
    """Peak curves of one candidate, each made on first use. ``known`` has costs and the first position."""

    def __init__(self, known: Mapping[Layout, tuple[Costs, int]], place: int) -> None:
        self._known, self._place = known, place

    def __missing__(self, layout: Layout) -> PeakCurve:
        costs, first = self._known[layout]
        curve = self[layout] = costs.curve(first + self._place)
        return curve

    def __contains__(self, layout: object) -> bool:
        return layout in self._known
