"""Phase 1 of planning: lists the ways in which a model can, and by its hints may, be spread over a number of ranks.

A way is a ``Spread`` that ranks can train. Every combination here has been trained to the loss of one process (see
``tests/workloads``). What a way costs is in ``pricing``; how a pipeline is cut and ordered is in ``pipelines``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from estimators.axes import Spread
from estimators.model import Divisions


def list_ways(divisions: Divisions, num_ranks: int) -> list[Spread]:
    """All ways to spread a model that can be divided by ``divisions`` over exactly ``num_ranks``.

    Degrees are powers of two. Each way comes without recompute, with selective and with full recompute. Stages
    that are also tensor parallel are listed only for a model whose hints ask for a pipeline.
    """
    spreads = (spread for spread in _over_ranks(divisions, num_ranks) if divisions.constraints.allow(spread))
    return [way for spread in spreads for way in _inside(spread, divisions)]


def _over_ranks(divisions: Divisions, num_ranks: int) -> Iterator[Spread]:
    """Ways that differ in how the ranks divide the work."""
    if num_ranks == 1:
        yield Spread()
        return
    yield Spread(dp_shard=num_ranks)
    yield Spread(dp_replicate=num_ranks)
    yield Spread(dp_replicate=num_ranks, zero1=True)
    for degree in _powers(num_ranks):
        others = num_ranks // degree
        if others > 1:
            yield Spread(dp_replicate=degree, dp_shard=others)
        if divisions.most_parts % degree == 0:
            yield Spread(tp=degree, dp_shard=others)
            yield Spread(tp=degree, dp_shard=others, sequence_parallel=True)
        if divisions.most_stages >= degree:
            yield Spread(pp=degree, dp_shard=others)
        if divisions.most_slabs % degree == 0:
            yield Spread(spatial=degree, dp_shard=others)
    if divisions.constraints.least("pp") > 1:
        yield from _split_stages(divisions, num_ranks)


def _split_stages(divisions: Divisions, num_ranks: int) -> Iterator[Spread]:
    """Pipelines whose stages are tensor parallel."""
    for num_stages in _powers(num_ranks):
        for degree in _powers(num_ranks // num_stages):
            if divisions.most_stages >= num_stages and divisions.most_parts % degree == 0:
                yield Spread(pp=num_stages, tp=degree, dp_shard=num_ranks // num_stages // degree)


def _inside(spread: Spread, divisions: Divisions) -> Iterator[Spread]:
    """Ways that differ in how each rank computes its blocks."""
    yield spread
    yield replace(spread, recompute=True, selective=True)
    yield replace(spread, recompute=True)
    if divisions.in_parts and spread.tp == 1 and spread.pp == 1:
        yield from (replace(spread, co_shard=parts) for parts in _powers(divisions.most_parts))


def _powers(most: int) -> Iterator[int]:
    """Powers of two that divide ``most``, from 2."""
    degree = 2
    while most % degree == 0:
        yield degree
        degree *= 2
