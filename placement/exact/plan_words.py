"""Puts an option of ``scamp plan`` into plain words: what is divided, what recompute saves, and what bounds a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from estimators.model import size_in_words
from estimators.pipelining.schedules import short_name
from placement.option import Option
from placement.refinement import PlanStage, UnevenShares

_NO_SIZE_MIB = 2**30  # a device with a PiB stands for one of any size


def ways_in_words(option: Option) -> str:
    """The degrees, the schedule unless the search has chosen the stages, and recompute if it is that of all blocks."""
    plan, refinement = option.plan, option.refinement
    again = "" if not _recomputes_all(option) else ", selective" if plan.selective else ", recompute"
    if refinement.is_searched or plan.pp == 1:
        return plan.short + again
    if refinement.pipeline is None:
        return f"{plan.short} {short_name(plan.schedule)}{again}"
    uneven = "" if refinement.pipeline.is_even else ", uneven"
    return f"{plan.short} {refinement.pipeline.schedule.name}{again}{uneven}"


def details(option: Option, *, with_devices: bool) -> Iterator[str]:
    """Yield what else there is to say of a plan that was searched: an uneven cut, recompute of some blocks, samples on
    different devices, and kinds of devices if wanted."""
    refinement = option.refinement
    if not refinement.is_searched:
        return
    cut = refinement.cut
    if refinement.pipeline is not None and not refinement.pipeline.is_even:
        yield f"stages of {'-'.join(map(str, cut))} blocks" if len(cut) < 5 else "uneven stages"
    if refinement.shares is not None:
        yield f"{' + '.join(str(sum(shares)) for shares in refinement.shares.samples.values())} samples"
    elif refinement.recomputed and not _recomputes_all(option):
        again = "selective:" if option.plan.selective else "recompute of"
        yield f"{again} {len(refinement.recomputed)} of {sum(cut)} blocks"
    if with_devices:
        yield f"on {' + '.join(f'{num} {kind}' for kind, num in refinement.devices.items())}"


def in_full(option: Option) -> str:
    """The ways and all details in one line."""
    return ", ".join([ways_in_words(option), *details(option, with_devices=len(option.refinement.devices) > 1)])


def reasons(option: Option) -> Iterator[str]:
    """Yield sentences on what is divided where, what recompute saves and costs, and what bounds the step."""
    yield from _divided(option)
    if option.refinement.shares is not None:
        yield from _of_shares(option.refinement.shares, option.seconds or 0.0)
        yield _bound(option)
        return
    yield from _of_recompute(option)
    yield _bound(option) + _slowest(option.refinement.stages)


def _divided(option: Option) -> Iterator[str]:
    plan, stages = option.plan, option.refinement.stages
    if plan.dp_shard > 1:
        states = "of the rest, beside its part of divided layers" if plan.divided else "of the model's states"
        yield f"{plan.dp_shard} ranks divide the batch, and each holds a shard {states}"
    if plan.dp_replicate > 1:
        states = "optimizer states are divided" if plan.zero1 else "each holds all states of its part of the model"
        states = "each has a part of the experts, tables and heads that are divided" if plan.divided else states
        yield f"{plan.dp_replicate} replicas divide the batch; {states}"
    if plan.tp > 1:
        lengthwise = ", and what lies between them by sequence" if plan.sequence_parallel else ""
        yield f"{plan.tp} ranks divide the layers of each block{lengthwise}"
    if stages and plan.pp > 1:
        cut = "-".join(map(str, option.refinement.cut))
        cut = cut if len(cut) < 40 else f"{cut[:36]} …"
        yield f"{plan.pp} stages have {cut} blocks{_places(stages)}"
    if plan.world_size == 1:
        yield "one rank has everything"


def _places(stages: Sequence[PlanStage]) -> str:
    """The kinds of devices of the stages, if they differ."""
    kinds = [stage.kind for stage in stages]
    return f" on {', '.join(kinds)}" if len(set(kinds)) > 1 else ""


def _of_recompute(option: Option) -> Iterator[str]:
    refinement, stages = option.refinement, option.refinement.stages
    fullest = refinement.fullest
    of = f" of {fullest.offered_mib}" if fullest.offered_mib < _NO_SIZE_MIB else ""
    holds = f"the fullest rank reserves {option.prediction.reserved_mib}{of} MiB"
    if not refinement.recomputed:
        yield f"nothing is recomputed: {holds}"
        return
    saved = max(stage.saved_bytes for stage in stages)
    again = "selective recompute" if option.plan.selective else "recompute"
    slowest = max(stages, key=lambda stage: stage.pass_seconds)
    without = slowest.pass_seconds - slowest.recompute_seconds
    percent = 100 * slowest.recompute_seconds / without if without else 0.0
    slower = f"makes {'the slowest stage' if len(stages) > 1 else 'passes'} {percent:.2g} % slower"
    share = f"{len(refinement.recomputed)} of {sum(refinement.cut)} blocks"
    yield f"{again} of {share} saves {'up to ' if len(stages) > 1 else ''}{size_in_words(saved)} on a rank and {slower}"
    yield holds


def _of_shares(shares: UnevenShares, seconds: float) -> Iterator[str]:
    yield f"shares: {shares.reason}"
    if shares.even_seconds < inf and seconds:
        yield f"even shares would take {shares.even_seconds / seconds:.2f} times as long"
    elif shares.even_seconds == inf:
        yield "even shares would not fit, or do not divide the batch"


def _bound(option: Option) -> str:
    communication_share, bubble_share = option.communication_share or 0.0, option.bubble_share or 0.0
    shares = {"computation": 1 - communication_share - bubble_share}
    shares |= {"communication": communication_share, "bubbles": bubble_share}
    words = ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share >= 0.005)
    return f"{max(shares, key=lambda name: shares[name])} bounds the step: {words}"


def _slowest(stages: Sequence[PlanStage]) -> str:
    if len(stages) == 1:
        return ""
    seconds = [stage.pass_seconds for stage in stages]
    return f"; stage {seconds.index(max(seconds)) + 1} of {len(seconds)} is the slowest"


def _recomputes_all(option: Option) -> bool:
    refinement = option.refinement
    if refinement.stages:
        return 0 < len(refinement.recomputed) == sum(refinement.cut)
    return option.plan.recompute
