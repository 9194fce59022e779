"""Compares the plans of one candidate by time: those of ``scamp estimate``, pipelines, and those of the exact search.

Candidates, traces, units and seconds are those of the estimate. Pipelines and plans of the search are priced from
units; of either, the fastest one that ranks can train today and that fits is traced, so that its memory is exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from estimators.devices.kind import FLOP_COUNTER, DeviceKind
from estimators.model import Plan, Prediction
from placement.exact.best_plans import BestPlan, PlanSearch
from placement.exact.pipelines import Pipeline, list_pipelines, order
from placement.exact.plan_words import Planned, details, in_full, reasons, ways_in_words
from placement.exact.uneven_plans import UnevenPlan, best_uneven
from placement.model import Cluster
from placement.option import Option
from placement.pipelining.passes import Action
from placement.pipelining.shared_cores import seconds_on
from placement.pipelining.simulator import Interval
from placement.pricing.categories import bytes_by_category
from scamp_service.errors import InvalidInput
from scamp_service.sizing.cluster_file import NamedCluster
from scamp_service.sizing.estimate import Estimate, Estimator
from scamp_service.sizing.step_seconds import comparable_step

MOST_TRACED = 3
"""Most pipelines that are traced until one fits, and as many plans of the search."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """One plan of a candidate. ``seconds`` of an optimizer step are FLOPs if no speed is known.

    They are None for an ``option`` that does not fit: it may stand for a part of the batch, the least that needs too
    much. ``plan`` is None if ranks cannot train it today. ``option``, ``searched`` or else ``pipeline`` is where the
    figures come from; the first two may have a ``pipeline`` as well, to be drawn. ``details`` are what its row says
    beside the ways: recompute, shares of the batch, unlike devices.
    """

    plan: Plan | None
    num_ranks: int
    micro_batch: int
    num_micro_batches: int
    seconds: float | None
    bubble_share: float
    communication_share: float
    prediction: Prediction
    fits: bool
    option: Option | None = None
    pipeline: Pipeline | None = None
    searched: Planned | None = None
    details: tuple[str, ...] = ()

    @property
    def is_traced(self) -> bool:
        """Whether its memory is that of a trace, and not added up from the costs of units."""
        return bool(self.prediction.parts)

    @property
    def ways(self) -> str:
        """How the ranks divide the work, in a few words."""
        if self.searched is not None:
            return ways_in_words(self.searched)
        if self.option is not None:
            plan = self.option.plan
            schedule = f" {plan.schedule}" if plan.pp > 1 else ""
            again = ", selective" if plan.selective else ", recompute" if plan.recompute else ""
            return plan.short + schedule + again
        assert self.pipeline is not None
        uneven = "" if self.pipeline.is_even else ", uneven"
        return f"PP ×{self.num_ranks} {self.pipeline.schedule.name}{uneven}"

    def to_json(self) -> dict[str, Any]:
        """One alternative of ``scamp plan --json``, without its time."""
        pipeline = self.pipeline
        return {
            "text": ", ".join([self.ways, *self.details]),
            "searched": _searched_json(self.searched) if self.searched else None,
            "trains_today": self.plan is not None,
            "plan": self.plan.to_json() if self.plan else None,
            "num_ranks": self.num_ranks,
            "micro_batch": self.micro_batch,
            "num_micro_batches": self.num_micro_batches,
            "bubble_share": self.bubble_share,
            "communication_share": self.communication_share,
            "peak_bytes": self.prediction.peak_bytes,
            "reserved_mib": self.prediction.reserved_mib,
            "traced": self.is_traced,
            "fits": self.fits,
            "schedule": pipeline.schedule.name if pipeline else None,
            "blocks": list(pipeline.cut) if pipeline else None,
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """All alternatives of a candidate, the best first.

    ``refusal`` is why no pipeline could be traced, if so. ``searched`` are the plans of the search, also those that are
    among the others. ``shortage`` says what is missing if no plan fits.
    """

    estimate: Estimate
    alternatives: Sequence[Alternative]
    refusal: str = ""
    searched: Sequence[Planned] = ()
    shortage: Shortage | None = None

    @property
    def by_flops(self) -> bool:
        """Whether FLOPs stand for time, because nothing is known of the speed of the devices."""
        return self.estimate.kind is None

    @property
    def links_are_known(self) -> bool:
        """Whether the time of gangs contains their communication."""
        return self.estimate.kind is not None and self.estimate.kind.links is not None

    @property
    def best_pipeline(self) -> Alternative | None:
        """The best of the pipelines, whether or not ranks can train it today; it fits if any does."""
        return next((one for one in self.alternatives if one.pipeline is not None), None)

    @property
    def best_of_search(self) -> Planned | None:
        """The fastest plan of the search that fits, about which the reasons are; None if the search found none."""
        return min((plan for plan in self.searched if plan.fits), key=lambda plan: plan.seconds, default=None)

    def to_json(self) -> dict[str, Any]:
        """One line of ``scamp plan --json``. Intervals have (start, end, stage, micro-batch, pass) for each rank."""
        best = self.best_pipeline
        return {
            "params": dict(self.estimate.params),
            "batch": self.estimate.batch,
            "device": self.estimate.kind.name if self.estimate.kind else None,
            "ranked_by": "FLOPs" if self.by_flops else "seconds",
            "times_include_communication": self.links_are_known,
            "alternatives": [{**one.to_json(), **self._time_json(one)} for one in self.alternatives],
            "reason": [] if self.best_of_search is None else list(reasons(self.best_of_search)),
            "shortage": asdict(self.shortage) if self.shortage else None,
            "refusal": self.refusal,
            "refused": self.estimate.refused,
            "best_pipeline": self._intervals(best.pipeline) if best and best.pipeline else None,
        }

    def _time_json(self, one: Alternative) -> dict[str, float | None]:
        return {"step_flops" if self.by_flops else "step_seconds": one.seconds}

    def _intervals(self, pipeline: Pipeline) -> dict[str, Any]:
        simulation = pipeline.simulation
        ranks = range(simulation.num_ranks)
        computing = [[_interval_json(one) for one in simulation.computing if one.rank == rank] for rank in ranks]
        return {"computing": computing, "memory_bytes": [list(map(list, held)) for held in simulation.memory]}


@dataclass(frozen=True, slots=True)
class Shortage:
    """The plan that comes closest to fitting, if none does: ``needed_mib`` of one rank, and its bytes by category.

    The categories and the margin add up to what is needed, but for rounding.
    """

    text: str
    needed_mib: int
    offered_mib: int
    num_bytes: Mapping[str, int]
    is_traced: bool


def compare(
    estimator: Estimator,
    params: Mapping[str, Any],
    cluster: Cluster,
    named: NamedCluster | None = None,
    share: int = 1,
) -> Comparison:
    """Compare the plans of one candidate with a ``share`` of the devices. Raises ``InvalidInput`` like
    ``Estimator.estimate``.

    Plans of the search may use all devices of ``named``, if it is given; ``cluster`` are then those of the kind of the
    estimator.
    """
    found = estimator.estimate(params, cluster, share)
    pipelines = list_pipelines(found.units, found.profile, batch=found.batch, cluster=cluster, kind=found.kind)
    refusal = ""
    try:
        pipelines = _traced(estimator, params, pipelines)
    except InvalidInput as refused:
        refusal = str(refused)
        pipelines = [replace(one, plan=None) for one in pipelines]
    others = [_of_option(found, option) for option in found.options]
    others = _added(others, [_of_pipeline(pipeline, found.kind) for pipeline in pipelines])
    kinds = named.kinds if named else {cluster.devices[0].kind: found.kind or FLOP_COUNTER}
    devices = named.cluster if named else cluster
    search = PlanSearch(found.profile, found.batch, devices, kinds)
    planned: list[Planned] = [*search.best()]
    if (uneven := best_uneven(found.profile, found.batch, devices, kinds)) is not None:
        planned.append(uneven)
    known = {one.plan: one.prediction for one in others if one.plan is not None}
    made = [_predicted(_of_planned(plan, with_devices=len(kinds) > 1), known) for plan in planned]
    made = _with_trace(estimator, params, made, known)
    alternatives = sorted(_added(others, made), key=_order)
    shortage = None if any(one.fits for one in alternatives) else _shortage(alternatives, search.closest())
    return Comparison(found, alternatives, refusal, [one.searched for one in made if one.searched], shortage)


def _with_trace(
    estimator: Estimator,
    params: Mapping[str, Any],
    alternatives: Sequence[Alternative],
    known: Mapping[Plan, Prediction],
) -> list[Alternative]:
    """The plans of the search, with the exact memory of the fastest one that ranks can train and that fits.

    Those that are ``known`` have it already. One that cannot be traced has no plan for ranks.
    """
    found = list(alternatives)
    for _ in range(MOST_TRACED):
        new = (one for one in found if one.plan is not None and one.plan not in known)
        best = min(new, key=_order, default=None)
        if best is None or best.plan is None or best.is_traced:
            break
        try:
            largest = max(estimator.predict(params, best.plan), key=lambda stage: stage.reserved_mib)
            traced = _predicted(best, {best.plan: largest})
        except InvalidInput:
            traced = replace(best, plan=None)
        found[found.index(best)] = traced
    return found


def _predicted(one: Alternative, known: Mapping[Plan, Prediction]) -> Alternative:
    """The alternative with the memory that is known of its plan, if any."""
    if one.plan is None or one.plan not in known or one.searched is None:
        return one
    searched = replace(one.searched, prediction=known[one.plan])
    return replace(one, prediction=searched.prediction, fits=searched.fits, searched=searched)


def _of_planned(plan: Planned, *, with_devices: bool) -> Alternative:
    trained, bubble_share, pipeline = None, 0.0, None
    if isinstance(plan, BestPlan):
        trained, bubble_share, pipeline = plan.plan, plan.bubble_share, plan.pipeline
    return Alternative(
        trained,
        plan.num_ranks,
        plan.micro_batch,
        plan.num_micro_batches,
        plan.seconds,
        bubble_share,
        plan.communication_share,
        plan.prediction,
        plan.fits,
        pipeline=pipeline,
        searched=plan,
        details=tuple(details(plan, with_devices=with_devices)),
    )


def _shortage(alternatives: Sequence[Alternative], closest: BestPlan | None) -> Shortage | None:
    """Says what the closest plan lacks, of those that were traced and the closest one of the search."""
    found = []
    for one in alternatives:
        source = one.option or one.searched or one.pipeline
        if one.is_traced and source is not None:
            num_bytes = bytes_by_category(one.prediction)
            found.append(Shortage(one.ways, one.prediction.reserved_mib, source.offered_mib, num_bytes, True))
    if closest is not None and not closest.fits:
        prediction = closest.prediction
        num_bytes = {**closest.fullest.bytes_by_category, "margin": prediction.margin_bytes}
        found.append(Shortage(in_full(closest), prediction.reserved_mib, closest.offered_mib, num_bytes, False))
    return min(found, key=lambda one: one.needed_mib / one.offered_mib, default=None)


def _searched_json(plan: Planned) -> dict[str, Any]:
    if isinstance(plan, UnevenPlan):
        samples = {kind: list(shares) for kind, shares in plan.samples.items()}
        return {"devices": plan.devices, "samples": samples, "recomputed_blocks": None, "recompute": _recompute(plan)}
    blocks = list(plan.recomputed)
    return {"devices": plan.devices, "samples": None, "recomputed_blocks": blocks, "recompute": _recompute(plan)}


def _recompute(plan: Planned) -> str | None:
    if not plan.spread.recompute:
        return None
    return "selective" if plan.spread.selective else "whole"


def _traced(estimator: Estimator, params: Mapping[str, Any], pipelines: Sequence[Pipeline]) -> list[Pipeline]:
    """The pipelines, with the exact memory of the best one that ranks can train and that fits."""
    found = list(pipelines)
    for _ in range(MOST_TRACED):
        trained = [one for one in sorted(found, key=order) if one.plan is not None]
        untraced = next((one for one in trained if not one.prediction.parts), None)
        if untraced is None or any(one.fits and one.prediction.parts for one in trained):
            break
        assert untraced.plan is not None
        largest = max(estimator.predict(params, untraced.plan), key=lambda stage: stage.reserved_mib)
        found[found.index(untraced)] = replace(untraced, prediction=largest)
    return found


def _added(others: Sequence[Alternative], more: Sequence[Alternative]) -> list[Alternative]:
    """The ``others`` and those of ``more`` with other plans; for the same plan only the pipeline to draw is taken."""
    plans = {one.plan for one in others} - {None}
    drawn = {one.plan: one.pipeline for one in more if one.plan in plans}
    kept = [replace(one, pipeline=one.pipeline or drawn.get(one.plan)) for one in others]
    return [*kept, *(one for one in more if one.plan not in plans)]


def _of_option(found: Estimate, option: Option) -> Alternative:
    """The time of an option that fits is FLOPs without a device kind, and without links that of its computation and
    bubbles."""
    plan = option.plan
    step = comparable_step(found.profile, plan, found.kind) if option.fits else None
    seconds, bubble, waiting = (step.seconds, step.bubble_share, step.communication_share) if step else (None, 0.0, 0.0)
    sizes = (plan.world_size, plan.micro_batch, plan.num_micro_batches)
    return Alternative(plan, *sizes, seconds, bubble, waiting, option.prediction, option.fits, option=option)


def _of_pipeline(pipeline: Pipeline, kind: DeviceKind | None) -> Alternative:
    simulation, schedule = pipeline.simulation, pipeline.schedule
    return Alternative(
        pipeline.plan,
        schedule.num_ranks,
        pipeline.micro_batch,
        schedule.num_micro_batches,
        seconds_on(simulation, kind or FLOP_COUNTER),
        simulation.bubble_share,
        simulation.communication_share,
        pipeline.prediction,
        pipeline.fits,
        pipeline=pipeline,
    )


def _order(one: Alternative) -> tuple[bool, float, int, bool]:
    seconds = float("inf") if one.seconds is None else float(f"{one.seconds:.6g}")
    return not one.fits, seconds, one.num_ranks, one.plan is None


def _interval_json(interval: Interval) -> list[Any]:
    action: Action | None = interval.action
    what = [action.stage, action.micro_batch, action.kind] if action else [None, None, "update"]
    return [interval.start_seconds, interval.end_seconds, *what]
