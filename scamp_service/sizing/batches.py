"""The batches of a candidate: the largest that fits, where it asks for that, and those with which it may continue.

What a candidate asks for is in ``workloads.batch``. Pure: plans and traces are made elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from estimators.memory import Extra, largest_micro_batch
from estimators.profile import ModelProfile
from placement.model import Cluster
from placement.planning.answers import ChosenPlan
from placement.planning.question import margin_for
from scamp_service.control.executor import Demand
from scamp_service.model import Choice
from scamp_service.sizing.plan_search import Missing
from workloads.batch import BatchRequest


@dataclass(frozen=True, slots=True)
class LargestBatch:
    """The batch that is chosen for a candidate, and the reason."""

    samples: int
    reason: str


def largest_batch(
    request: BatchRequest, chosen: ChosenPlan, profile: ModelProfile, cluster: Cluster, extra: Extra
) -> LargestBatch | Missing:
    """The largest batch that the ranks of a plan compute at once, between the bounds of the candidate.

    ``chosen`` is the plan for the upper bound. A pipeline gets this one: it computes any batch in micro-batches.
    """
    plan, layout = chosen.plan, replace(chosen.plan.layout, accumulate=False)
    if plan.num_micro_batches == 1 or plan.pp > 1 or profile.refusal(layout):
        limit = "allowed" if plan.batch == request.most else "in the training set"
        return LargestBatch(plan.batch, f"batch {plan.batch}: the largest {limit}, and it fits")
    if layout not in profile.curves:
        return Missing([layout])
    offered_mib = next(option.offered_mib for option in chosen.options if option.plan == plan)
    most = largest_micro_batch(profile, layout, offered_mib, extra, margin_for(cluster))
    samples = request.choose(most, plan.num_shares, plan.batch)
    at_once = f"{plan.ways} computes at most {most * plan.num_shares} samples at once on devices of {offered_mib} MiB"
    return LargestBatch(samples, f"batch {samples}, from {request.least} to {plan.batch}: {at_once}")


def other_batches(demand: Demand, batch: int) -> Sequence[int]:
    """The batches with which the candidate may continue, the smallest first.

    There are none under a plan that the study gives, nor after the candidate ran out of memory.
    """
    if demand.plan is not None or demand.own_attempts:
        return ()
    return BatchRequest.of(demand.candidate.params).others(batch)


def with_other_batches(choice: Choice, choices: tuple[Choice, ...], others: Sequence[Choice]) -> tuple[Choice, ...]:
    """The choices, and ``others`` that train a larger batch on more ranks, or a smaller one on as many; those on the
    fewest ranks first."""
    batch, num_ranks = choice.plan.batch, choice.plan.world_size
    more = [
        other
        for other in others
        if (other.plan.world_size > num_ranks if other.plan.batch > batch else other.plan.world_size <= num_ranks)
    ]
    if not more or choice.step_seconds is None:
        return choices
    all_of_them = [*(choices or (choice,)), *(other for other in more if other.step_seconds is not None)]
    return tuple(sorted(all_of_them, key=lambda other: (other.plan.world_size, other.plan.batch)))
