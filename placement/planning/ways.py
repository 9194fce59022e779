"""Phase 1 of planning: lists the ways in which a model can, and by its hints may, be spread over a number of ranks.

A way is a ``Spread`` that ranks can train. Every combination here has been trained to the loss of one process (see
``tests/workloads``). What a way costs is in ``placement.pricing``; how a pipeline is cut and ordered is in
``placement.pipelining``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from estimators.axes import Spread
from estimators.model import Divisions
from placement.planning.question import divisors


def list_ways(divisions: Divisions, num_ranks: int) -> list[Spread]:
    """All ways to spread a model that can be divided by ``divisions`` over exactly ``num_ranks``.

    Shards take the factor of ``num_ranks`` that other degrees leave. Each way comes without recompute, with selective
    and with full recompute. Two ways are left out, because another one is never worse: GPipe holds more
    than 1F1B in the same time, and stages of a pipeline that keep their shards gathered hold them for a whole step.
    """
    numbers = [pp for pp in reversed(divisors(num_ranks)) if pp <= divisions.most_stages]
    spreads = (spread for pp in numbers for spread in list_spreads(divisions, num_ranks // pp, pp))
    return [way for spread in spreads for way in _inside(spread, divisions)]


def list_spreads(divisions: Divisions, num_ranks: int, num_stages: int = 1) -> Iterator[Spread]:
    """Yield the ways in which ``num_ranks`` can divide the work of each of ``num_stages``, and that hints allow.

    This is the one list of what ranks can divide; both searches for plans use it. Recompute and parts of blocks are
    left out: they are decided elsewhere. Plain FSDP comes first, those with many axes last.
    """
    return filter(divisions.constraints.allow, _over_ranks(divisions, num_ranks, num_stages))


def _over_ranks(divisions: Divisions, num_ranks: int, num_stages: int) -> Iterator[Spread]:
    numbers = divisors(num_ranks)[::-1]
    most = divisions.most_parts, divisions.most_slabs, num_ranks
    for tp, spatial, dp_replicate in product(*([num for num in numbers if limit % num == 0] for limit in most)):
        dp_shard, rest = divmod(num_ranks, tp * spatial * dp_replicate)
        if rest:
            continue
        if spatial > 1 and tp * num_stages > 1:  # space is divided only together with shards and replicas
            continue
        spread = Spread(spatial=spatial, dp_replicate=dp_replicate, dp_shard=dp_shard, tp=tp, pp=num_stages)
        yield spread
        if dp_shard > 1 and num_stages == 1:
            yield replace(spread, reshard=False)
        if tp > 1:
            yield replace(spread, sequence_parallel=True)
        if (num_shares := dp_replicate * dp_shard) > 1 and spatial == 1 and divisions.most_divided % num_shares == 0:
            yield replace(spread, divided=True)
        if 1 < num_ranks == dp_replicate and num_stages == 1:
            yield replace(spread, zero1=True)
            if num_ranks & (num_ranks - 1) == 0:
                yield replace(spread, adasum=True)


def _inside(spread: Spread, divisions: Divisions) -> Iterator[Spread]:
    """Ways that differ in how each rank computes its blocks."""
    yield spread
    yield replace(spread, recompute=True, selective=True)
    yield replace(spread, recompute=True)
    if divisions.in_parts and spread.tp == 1 and spread.pp == 1:
        yield from (replace(spread, co_shard=parts) for parts in _powers_that_divide(divisions.most_parts) if parts > 1)


def _powers_that_divide(most: int) -> Iterator[int]:
    """Powers of two that divide ``most``, from 1."""
    degree = 1
    while most % degree == 0:
        yield degree
        degree *= 2
