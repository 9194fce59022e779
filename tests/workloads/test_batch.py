"""A candidate asks for a batch, or for bounds between which one is chosen or changed."""

from __future__ import annotations

from typing import Any

import pytest

from workloads.batch import MOST_SAMPLES, BatchRequest, to_try, with_batch, wrong_batch

SCALED = {"scale_lr": "adascale", "base_batch": 16}


def request(**params: Any) -> BatchRequest:
    return BatchRequest.of(params)


def test_a_candidate_asks_for_a_number_the_default_or_the_largest_batch() -> None:
    assert (request(batch=24).samples, request(batch=24).takes_largest) == (24, False)
    assert (request().samples, request().takes_largest) == (None, False)
    assert (request(batch="largest").samples, request(batch="largest").takes_largest) == (None, True)


@pytest.mark.parametrize("batch", [0, -1, 2.5, "8", True, None, []])
def test_anything_else_is_no_batch(batch: Any) -> None:
    assert wrong_batch(batch)
    with pytest.raises(ValueError, match="an integer of at least 1, or largest; got"):
        request(batch=batch)


@pytest.mark.parametrize(
    ("params", "bounds"),
    [
        ({}, (1, MOST_SAMPLES)),
        ({"smallest_batch": 8, "largest_batch": 64}, (8, 64)),
        ({"smallest_batch": 2000}, (2000, 2000)),
        (SCALED, (16, MOST_SAMPLES)),
    ],
)
def test_the_largest_batch_is_chosen_between_bounds(params: dict[str, Any], bounds: tuple[int, int]) -> None:
    chosen = request(batch="largest", **params)
    assert (chosen.least, chosen.most) == bounds


@pytest.mark.parametrize(
    ("at_once", "num_shares", "most", "batch"),
    [
        (300, 1, 256, 256),
        (300, 1, 1024, 288),
        (15, 1, 1024, 15),
        (31, 1, 1024, 30),
        (300, 4, 1024, 1024),
        (113, 4, 1024, 448),
        (300, 1, 1000, 288),
        (3, 1, 1024, 8),
    ],
)
def test_the_chosen_batch_fits_and_can_be_divided(at_once: int, num_shares: int, most: int, batch: int) -> None:
    chosen = request(batch="largest", smallest_batch=8).choose(at_once, num_shares, most)
    assert chosen == batch
    assert chosen == 8 or (at_once * num_shares * 7 / 8 < chosen <= at_once * num_shares or chosen == most)


@pytest.mark.parametrize(
    ("params", "others"),
    [
        ({"largest_batch": 256}, [128, 256]),
        ({"largest_batch": 255}, [128]),
        ({"smallest_batch": 16}, [16, 32]),
        ({"smallest_batch": 20, "largest_batch": 128}, [32, 128]),
        ({}, []),
        ({"largest_batch": 256, "scale_lr": "none"}, []),
    ],
)
def test_a_batch_changes_within_its_bounds_if_the_learning_rate_follows(
    params: dict[str, Any], others: list[int]
) -> None:
    assert request(**{"batch": 64, **SCALED, **params}).others(64) == others


def test_a_batch_that_was_chosen_stays() -> None:
    params = {"batch": "largest", "largest_batch": 256, "smallest_batch": 16, "lr": 0.1, **SCALED}
    assert with_batch(params, 64) == {"batch": 64, "lr": 0.1, **SCALED}
    assert request(**with_batch(params, 64)).others(64) == request(**params).others(64) == []
    assert to_try(params)["batch"] == 256
    assert to_try({"batch": 8}) == {"batch": 8}
