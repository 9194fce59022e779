"""Compares the plans of one candidate by time: those of ``scamp estimate``, pipelines, and those of the exact search.

Candidates, traces, units and seconds are those of the estimate. Pipelines and plans of the search are priced from
units; of either, the fastest one that ranks can train today and that fits is traced, so that its memory is exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from estimators.devices.kind import FLOP_COUNTER
from estimators.model import Plan
from placement.exact.best_plans import ExactSearch
from placement.exact.pipelines import list_pipelines, order
from placement.exact.ranked_options import Shortage, added, by_time, shortage, with_traced_memory
from placement.exact.uneven_plans import best_uneven
from placement.model import Cluster
from placement.option import Evidence, Option
from placement.planning.question import Question
from placement.planning.step_seconds import comparable_step
from scamp_service.errors import InvalidInput
from scamp_service.sizing.cluster_file import NamedCluster
from scamp_service.sizing.estimate import Estimator
from scamp_service.sizing.estimated import Estimate

REFUSED = "trace"
"""Why ranks cannot train a plan whose trace was refused."""
MOST_TRACED = 3
"""Most pipelines that are traced until one fits, and as many plans of the search."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """All options of a candidate, the best first.

    Their seconds are FLOPs if no speed is known, and None for an option that does not fit: it may stand for a part of
    the batch, the least that needs too much. ``refusal`` is why no pipeline could be traced, if so. ``searched`` are
    the options of the search, also those that are among the others. ``shortage`` says what is missing if none fits.
    """

    estimate: Estimate
    options: Sequence[Option]
    refusal: str = ""
    searched: Sequence[Option] = ()
    shortage: Shortage | None = None
    has_different_devices: bool = False

    @property
    def by_flops(self) -> bool:
        """Whether FLOPs stand for time, because nothing is known of the speed of the devices."""
        return self.estimate.kind is None

    @property
    def links_are_known(self) -> bool:
        """Whether the time of gangs contains their communication."""
        return self.estimate.kind is not None and self.estimate.kind.links is not None

    @property
    def best_pipeline(self) -> Option | None:
        """The best of the pipelines, whether or not ranks can train it today; it fits if any does."""
        return next((option for option in self.options if option.refinement.pipeline is not None), None)

    @property
    def best_of_search(self) -> Option | None:
        """The fastest option of the search that fits, about which the reasons are; None if the search found none."""
        fitting = (option for option in self.searched if option.fits)
        return min(fitting, key=lambda option: option.seconds or 0.0, default=None)


def compare(
    estimator: Estimator,
    params: Mapping[str, Any],
    cluster: Cluster,
    named_cluster: NamedCluster | None = None,
) -> Comparison:
    """Compare the plans of one candidate. Raises ``InvalidInput`` like ``Estimator.estimate``.

    Plans of the search may use all devices of ``named_cluster``, if it is given; ``cluster`` are then those of the kind
    of the estimator.
    """
    estimate = estimator.estimate(params, cluster)
    question = Question(estimate.profile, estimate.batch, cluster, estimate.kind)
    pipelines, refusal = list_pipelines(question), ""
    try:
        pipelines = _traced_pipelines(estimator, params, pipelines)
    except InvalidInput as refused:
        pipelines, refusal = [_untrained(option) for option in pipelines], str(refused)
    options = added([_timed(estimate, option) for option in estimate.options], pipelines)
    kinds = named_cluster.kinds if named_cluster else {cluster.devices[0].kind: estimate.kind or FLOP_COUNTER}
    everywhere = replace(question, cluster=named_cluster.cluster) if named_cluster else question
    search, uneven = ExactSearch(everywhere, kinds), best_uneven(everywhere, kinds)
    searched = [*search.best(), *([uneven] if uneven is not None else [])]
    traced = {option.trained: option for option in options if option.trained is not None}
    searched = [with_traced_memory(option, traced) for option in searched]
    searched = _traced_search(estimator, params, search, searched, traced, everywhere.cluster)
    options = sorted(added(options, searched), key=by_time)
    missing = shortage(options, search.closest()) if not any(option.fits for option in options) else None
    return Comparison(estimate, options, refusal, searched, missing, len(kinds) > 1)


def _timed(estimate: Estimate, option: Option) -> Option:
    """The option of an estimate, with FLOPs for seconds without a device kind; without links it has those of its
    computation and bubbles."""
    step = comparable_step(estimate.profile, option.plan, estimate.kind) if option.fits else None
    if step is None:
        return replace(option, seconds=None, communication_share=None, bubble_share=None)
    waiting, idle = step.communication_share, step.bubble_share
    return replace(option, seconds=step.seconds, communication_share=waiting, bubble_share=idle)


def _traced_pipelines(estimator: Estimator, params: Mapping[str, Any], pipelines: Sequence[Option]) -> list[Option]:
    """The pipelines, with the exact memory of the best one that ranks can train and that fits."""
    options = list(pipelines)
    for _ in range(MOST_TRACED):
        trained = [option for option in sorted(options, key=order) if option.trained is not None]
        untraced = next((option for option in trained if not option.is_traced), None)
        if untraced is None or any(option.fits and option.is_traced for option in trained):
            break
        options[options.index(untraced)] = _traced(estimator, params, untraced)
    return options


def _traced_search(
    estimator: Estimator,
    params: Mapping[str, Any],
    search: ExactSearch,
    options: Sequence[Option],
    traced_options: Mapping[Plan, Option],
    cluster: Cluster,
) -> list[Option]:
    """The options of the search, with the exact memory of the fastest one that ranks can train and that fits.

    Those in ``traced_options`` have it already. Ranks cannot train one that cannot be traced. One that does not fit by
    its trace is followed by the best one with as much less memory as its units were wrong.
    """
    compared, wrong = list(options), 1.0
    for _ in range(MOST_TRACED):
        new = (option for option in compared if option.trained is not None and option.trained not in traced_options)
        best = min(new, key=by_time, default=None)
        if best is None or best.is_traced:
            break
        try:
            traced = _traced_shares(estimator, params, best, cluster)
        except InvalidInput:
            traced = _untrained(best)
        compared[compared.index(best)] = traced
        wrong *= min(1.0, best.prediction.reserved_mib / traced.prediction.reserved_mib)
        if not traced.fits and (smaller := search.smaller(best, wrong)) is not None:
            compared.append(with_traced_memory(smaller, traced_options))
    return compared


def _traced(estimator: Estimator, params: Mapping[str, Any], option: Option) -> Option:
    """The option with the memory of its traces. Raises ``InvalidInput`` if it cannot be traced."""
    largest = max(estimator.predict(params, option.plan), key=lambda stage: stage.reserved_mib)
    return replace(option, prediction=largest, evidence=Evidence.TRACED)


def _traced_shares(estimator: Estimator, params: Mapping[str, Any], option: Option, cluster: Cluster) -> Option:
    """As ``_traced``; if ranks take unlike shares, with the memory of the rank that has least left on its device."""
    plan = option.plan
    if not plan.shares:
        return _traced(estimator, params, option)
    of_share = {samples: _traced(estimator, params, replace(option, plan=plan.of_share(share)))
                for share, samples in enumerate(plan.shares)}  # fmt: skip
    ranks = zip(plan.shares, cluster.devices, strict=True)
    pairs = [(of_share[samples].prediction, device.capacity_mib) for samples, device in ranks]
    prediction, offered_mib = max(pairs, key=lambda pair: pair[0].reserved_mib / pair[1])
    return replace(option, prediction=prediction, offered_mib=offered_mib, evidence=Evidence.TRACED)


def _untrained(option: Option) -> Option:
    return replace(option, refinement=replace(option.refinement, untrained=option.refinement.untrained or REFUSED))
