"""Lower bounds of what a simulation of a pipeline will say, from formulas, before its schedule is even made.

With them ``exact.pipelines`` leaves out pipelines that cannot win.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from estimators.pipelining.schedules import IN_PARTS, holders_of
from placement.pipelining.simulator import MessageSeconds, StageCost


def least_seconds(
    name: str,
    stages: Sequence[StageCost],
    num_ranks: int,
    num_micro_batches: int,
    message_seconds: MessageSeconds = lambda *_: 0.0,
) -> float:
    """Seconds that one step of the named schedule takes at least.

    With m micro-batches, f and b seconds of the passes of one, and a message behind each stage:

    - a rank first waits until a micro-batch has come through the stages before its own, then runs all of its passes;
      the last gradient then returns through the same stages. Where backward passes run in parts, gradients of weights
      may all come after that gradient has left;
    - one micro-batch goes through all stages and back;
    - GPipe runs all forward passes before the first backward pass: Σf + (m − 1) · max f, and the same of b;
    - a rank's messages are sent and received one after another.
    """
    holders, num = holders_of(name, num_ranks), num_micro_batches
    hops = _hops(stages, holders, message_seconds)
    back = [stage.input_seconds + (0.0 if name in IN_PARTS else stage.weight_seconds) for stage in stages]
    ahead = [stage.forward_seconds for stage in stages]
    arrives, returns = (
        list(accumulate((stage_seconds + hop for stage_seconds, hop in zip(seconds, hops, strict=True)), initial=0.0))
        for seconds in (ahead, back)
    )
    every = _stages_of_ranks(holders, num_ranks)
    updates = [sum(stages[stage].update_seconds for stage in held) for held in every]
    last = (stages[0].weight_seconds if name in IN_PARTS else 0.0) + min(updates[rank] for rank in holders[0])
    bounds = [arrives[-1] + returns[-1] + last]
    for held, update in zip(every, updates, strict=True):
        passes = num * sum(ahead[stage] + back[stage] for stage in held)
        weights = num * sum(stages[stage].weight_seconds for stage in held) if name in IN_PARTS else 0.0
        bounds.append(arrives[held[0]] + passes + weights + update)
        if held[0]:
            bounds.append(arrives[held[0]] + passes + returns[held[0]] + last)
    if name == "gpipe":
        bounds.append(arrives[-1] + returns[-1] + (num - 1) * (max(ahead) + max(back)) + last)
    return max(*bounds, *_talking(stages, holders, num_ranks, num, message_seconds))


def least_bytes(name: str, stages: Sequence[StageCost], num_ranks: int, num_micro_batches: int) -> int:
    """Bytes that the rank which holds most holds at least, at once."""
    holders = holders_of(name, num_ranks)
    flying = _in_flight(name, num_ranks, num_micro_batches)
    most = 0
    for rank, held in enumerate(_stages_of_ranks(holders, num_ranks)):
        num_bytes = 0
        for stage in held:
            is_sent = stage > 0 and holders[stage - 1] != (rank,) and len(holders[stage - 1]) == 1
            received = stages[stage - 1].output_bytes if is_sent else 0
            num_bytes += stages[stage].state_bytes + flying[rank].get(stage, 0) * (stages[stage].kept_bytes + received)
        most = max(most, num_bytes)
    return most


def _stages_of_ranks(holders: Sequence[Sequence[int]], num_ranks: int) -> list[list[int]]:
    """The stages of each rank."""
    held: list[list[int]] = [[] for _ in range(num_ranks)]
    for stage, ranks in enumerate(holders):
        for rank in ranks:
            held[rank].append(stage)
    return held


def _hops(
    stages: Sequence[StageCost], holders: Sequence[Sequence[int]], message_seconds: MessageSeconds
) -> list[float]:
    """Seconds of the message behind each stage; 0 where both are on one rank, and next to shared stages."""
    hops = [0.0] * len(stages)
    for stage, (senders, receivers) in enumerate(pairwise(holders)):
        if len(senders) == len(receivers) == 1 and senders != receivers:
            hops[stage] = message_seconds(senders[0], receivers[0], stages[stage].output_bytes)
    return hops


def _talking(
    stages: Sequence[StageCost],
    holders: Sequence[Sequence[int]],
    num_ranks: int,
    num: int,
    message_seconds: MessageSeconds,
) -> list[float]:
    """Seconds of all messages of each rank."""
    totals = [0.0] * num_ranks
    for stage, (before, behind) in enumerate(pairwise(holders)):
        num_bytes = stages[stage].output_bytes
        for message in before:
            for other in behind:
                if message != other:
                    seconds = message_seconds(message, other, num_bytes // len(before))
                    seconds += message_seconds(other, message, num_bytes // len(behind))
                    totals[message] += num * seconds
                    totals[other] += num * seconds
    return totals


def _in_flight(name: str, num_ranks: int, num: int) -> list[dict[int, int]]:
    """Micro-batches that each rank has in flight at once, by stage: mostly just before its first backward pass."""
    ranks = range(num_ranks)
    if name == "gpipe":
        return [{rank: num} for rank in ranks]
    if name == "1f1b":
        return [{rank: min(num, num_ranks - rank)} for rank in ranks]
    if name == "zb-h1":  # gradients of weights are delayed until this many are in flight
        return [{rank: min(num, num_ranks)} for rank in ranks]
    if name == "interlaced":  # what is in flight in a rank's own stage has been through the first one
        return [{stage: min(num, num_ranks - rank) for stage in (0, rank + 1)} for rank in ranks]
    if name == "interleaved":
        return [_rounds(rank, num_ranks, num) for rank in ranks]
    assert name in ("zbv", "dualpipev"), name
    up = 2 * num_ranks - 1
    return [{rank: min(num, up - rank), up - rank: min(num, rank + 1)} for rank in ranks]


def _rounds(rank: int, num_ranks: int, num: int) -> dict[int, int]:
    """Rounds of one rank of ``schedules.interleaved``, which fills its two stages in turn."""
    size = num // max(1, num // num_ranks)
    first = min(2 * num, size + 2 * (num_ranks - 1 - rank) + 1)
    num_rounds, rest = divmod(first, 2 * size)
    return {rank: num_rounds * size + min(rest, size), rank + num_ranks: num_rounds * size + max(0, rest - size)}
