"""Says in plain words what a plan of the search divides, what recompute saves and costs, and what bounds a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from placement.exact.best_plans import BestPlan, PlanStage
from placement.exact.uneven_plans import UnevenPlan
from placement.pricing.categories import size

_NO_SIZE_MIB = 2**30  # a device with a PiB stands for one of any size

Planned = BestPlan | UnevenPlan


def ways_in_words(plan: Planned) -> str:
    """The degrees, and recompute if it is that of all blocks."""
    again = ", selective" if plan.spread.selective else ", recompute"
    return plan.spread.short + (again if _recomputes_all(plan) else "")


def details(plan: Planned, *, with_devices: bool) -> Iterator[str]:
    """Yield what else there is to say: an uneven cut, recompute of some blocks, samples on unlike devices, and kinds of
    devices if wanted."""
    if isinstance(plan, BestPlan) and plan.pipeline is not None and not plan.pipeline.is_even:
        yield f"stages of {'-'.join(map(str, plan.cut))} blocks" if len(plan.cut) < 5 else "uneven stages"
    if isinstance(plan, UnevenPlan):
        yield f"{' + '.join(str(sum(shares)) for shares in plan.samples.values())} samples"
    elif plan.recomputed and not _recomputes_all(plan):
        again = "selective:" if plan.spread.selective else "recompute of"
        yield f"{again} {len(plan.recomputed)} of {plan.num_blocks} blocks"
    if with_devices:
        yield f"on {' + '.join(f'{num} {kind}' for kind, num in plan.devices.items())}"


def in_full(plan: Planned) -> str:
    """The ways and all details in one line."""
    return ", ".join([ways_in_words(plan), *details(plan, with_devices=len(plan.devices) > 1)])


def reasons(plan: Planned) -> Iterator[str]:
    """Yield sentences on what is divided where, what recompute saves and costs, and what bounds the step."""
    yield from _divided(plan)
    if isinstance(plan, UnevenPlan):
        yield from _of_shares(plan)
        yield _bound(plan.communication_share, 0.0)
        return
    yield from _of_recompute(plan)
    yield _bound(plan.communication_share, plan.bubble_share) + _slowest(plan)


def _divided(plan: Planned) -> Iterator[str]:
    spread = plan.spread
    if spread.dp_shard > 1:
        yield f"{spread.dp_shard} ranks divide the batch, and each holds a shard of the model's states"
    if spread.dp_replicate > 1:
        states = "optimizer states are divided" if spread.zero1 else "each holds all states of its part of the model"
        yield f"{spread.dp_replicate} replicas divide the batch; {states}"
    if spread.tp > 1:
        lengthwise = ", and what lies between them by sequence" if spread.sequence_parallel else ""
        yield f"{spread.tp} ranks divide the layers of each block{lengthwise}"
    if isinstance(plan, BestPlan) and spread.pp > 1:
        cut = "-".join(map(str, plan.cut))
        cut = cut if len(cut) < 40 else f"{cut[:36]} …"
        yield f"{spread.pp} stages have {cut} blocks{_places(plan.stages)}"
    if spread.world_size == 1:
        yield "one rank has everything"


def _places(stages: Sequence[PlanStage]) -> str:
    """The kinds of devices of the stages, if they differ."""
    kinds = [stage.kind for stage in stages]
    return f" on {', '.join(kinds)}" if len(set(kinds)) > 1 else ""


def _of_recompute(plan: BestPlan) -> Iterator[str]:
    fullest = plan.fullest
    of = f" of {fullest.offered_mib}" if fullest.offered_mib < _NO_SIZE_MIB else ""
    holds = f"the fullest rank reserves {plan.prediction.reserved_mib}{of} MiB"
    if not plan.recomputed:
        yield f"nothing is recomputed: {holds}"
        return
    saved = max(stage.saved_bytes for stage in plan.stages)
    again = "selective recompute" if plan.spread.selective else "recompute"
    slowest = max(plan.stages, key=lambda stage: stage.pass_seconds)
    without = slowest.pass_seconds - slowest.recompute_seconds
    percent = 100 * slowest.recompute_seconds / without if without else 0.0
    slower = f"makes {'the slowest stage' if len(plan.stages) > 1 else 'passes'} {percent:.2g} % slower"
    share = f"{len(plan.recomputed)} of {plan.num_blocks} blocks"
    yield f"{again} of {share} saves {'up to ' if len(plan.stages) > 1 else ''}{size(saved)} on a rank and {slower}"
    yield holds


def _of_shares(plan: UnevenPlan) -> Iterator[str]:
    yield f"shares: {plan.reason}"
    if plan.even_seconds < inf and plan.seconds:
        yield f"even shares would take {plan.even_seconds / plan.seconds:.2f} times as long"
    elif plan.even_seconds == inf:
        yield "even shares would not fit, or do not divide the batch"


def _bound(communication_share: float, bubble_share: float) -> str:
    shares = {"computation": 1 - communication_share - bubble_share}
    shares |= {"communication": communication_share, "bubbles": bubble_share}
    words = ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share >= 0.005)
    return f"{max(shares, key=lambda name: shares[name])} bounds the step: {words}"


def _slowest(plan: BestPlan) -> str:
    if len(plan.stages) == 1:
        return ""
    seconds = [stage.pass_seconds for stage in plan.stages]
    return f"; stage {seconds.index(max(seconds)) + 1} of {len(seconds)} is the slowest"


def _recomputes_all(plan: Planned) -> bool:
    if isinstance(plan, UnevenPlan):
        return plan.spread.recompute
    return 0 < len(plan.recomputed) == plan.num_blocks
