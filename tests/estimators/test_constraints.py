"""Limits on plans, and the words for them."""

from __future__ import annotations

import pytest

from estimators.axes import Spread
from estimators.constraints import UNCONSTRAINED, Limit, Name, PlanConstraints

FOUR_PARTS = Limit("tp", 4, 4, "split", "blocks")
SOME_SHARES = Limit("shares", 2, None, "replica", "the model")


def limited(name: Name, least: int, most: int | None) -> PlanConstraints:
    return PlanConstraints((Limit(name, least, most, "hint", "here"),))


def test_without_limits_every_way_is_allowed_and_nothing_is_said() -> None:
    assert UNCONSTRAINED.allow(Spread()) and UNCONSTRAINED.allow(Spread(tp=8, dp_shard=2))
    assert UNCONSTRAINED.allow_micro_batches(7)
    assert (UNCONSTRAINED.least_ranks, UNCONSTRAINED.words) == (1, "")


@pytest.mark.parametrize(
    ("name", "allowed", "refused"),
    [
        ("tp", Spread(tp=2), Spread(dp_shard=2)),
        ("pp", Spread(pp=2), Spread(tp=2)),
        ("spatial", Spread(spatial=2), Spread(dp_shard=2)),
        ("shares", Spread(dp_shard=2), Spread(tp=2)),
        ("shares", Spread(dp_replicate=2, zero1=True), Spread()),
    ],
)
def test_a_limit_counts_the_ranks_of_its_own_axis(name: Name, allowed: Spread, refused: Spread) -> None:
    constraints = limited(name, 2, None)
    assert constraints.allow(allowed) and not constraints.allow(refused)


def test_replicas_times_shards_are_the_shares_of_the_batch() -> None:
    assert limited("shares", 4, 4).allow(Spread(dp_replicate=2, dp_shard=2))
    assert not limited("shares", 2, 2).allow(Spread(dp_replicate=2, dp_shard=2))


def test_marked_stages_exclude_cuts_and_orders_whose_stages_begin_elsewhere() -> None:
    marked = PlanConstraints((Limit("pp", 2, 2, "stage", "blocks.0 and 1 more"),))
    assert marked.allow(Spread(pp=2)) and marked.allow(Spread(pp=2, schedule="zb-h1"))
    assert not marked.allow(Spread(pp=2, cut=(1, 3)))
    assert not marked.allow(Spread(pp=2, schedule="interleaved"))


def test_an_upper_limit_of_one_excludes_an_axis() -> None:
    assert limited("tp", 1, 1).allow(Spread(dp_shard=4)) and not limited("tp", 1, 1).allow(Spread(tp=2))


def test_micro_batches_are_limited_without_limiting_ways() -> None:
    constraints = limited("micro_batches", 4, 4)
    assert constraints.allow(Spread(tp=2))
    assert [number for number in range(8) if constraints.allow_micro_batches(number)] == [4]
    assert constraints.least_ranks == 1


def test_the_fewest_ranks_are_the_product_of_what_each_limit_needs() -> None:
    assert PlanConstraints((FOUR_PARTS, SOME_SHARES)).least_ranks == 8


def test_the_words_name_every_hint_and_its_place() -> None:
    limits = (FOUR_PARTS, SOME_SHARES, Limit("pp", 2, 2, "pipeline", "the model"))
    pipeline = (limits[2], Limit("micro_batches", 3, 3, "pipeline", "the model"))
    assert PlanConstraints(limits[:1]).words == (
        "the model asks for tensor parallelism of degree 4 (hint split at blocks)"
    )
    assert PlanConstraints((SOME_SHARES, *pipeline)).words == (
        "the model asks for data parallelism (hint replica at the model) "
        "and a pipeline of 2 stages and 3 micro-batches (hint pipeline at the model)"
    )
    none = tuple(Limit(name, 1, 1, "default", "the model") for name in ("shares", "pp"))
    assert PlanConstraints(none).words == (
        "the model asks for no data parallelism and no pipeline (hint default at the model)"
    )
