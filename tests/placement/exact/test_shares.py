"""No shares are faster than those found, and all of them fit."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.exact.shares import Member, Shares, best_shares
from placement.option import NoPlan

MEMBERS = st.lists(
    st.builds(
        Member,
        st.sampled_from([0.7, 1.0, 1.5, 2.0, 3.0]),
        st.integers(0, 9),
        st.integers(5, 60),
        st.sampled_from([0.0, 1.0, 2.5]),
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=4,
)


def by_trying(members: list[Member], samples: int) -> float:
    best = inf
    for taken in product(range(1, samples + 1), repeat=len(members)):
        room = [member.room_bytes - num * member.bytes_per_sample for member, num in zip(members, taken, strict=True)]
        if sum(taken) == samples and min(room) >= 0:
            best = min(best, max(member.seconds(num) for member, num in zip(members, taken, strict=True)))
    return best


def slowest_seconds(members: list[Member], samples: int) -> float:
    shares = best_shares(members, samples)
    return shares.seconds if isinstance(shares, Shares) else inf


@settings(max_examples=300, deadline=None)
@given(MEMBERS, st.integers(1, 8))
def test_no_shares_are_faster_than_those_found(members: list[Member], samples: int) -> None:
    assert slowest_seconds(members, samples) == pytest.approx(by_trying(members, samples))


@settings(max_examples=200, deadline=None)
@given(MEMBERS, st.integers(1, 30))
def test_shares_are_complete_and_fit(members: list[Member], samples: int) -> None:
    shares = best_shares(members, samples)
    if isinstance(shares, Shares):
        assert sum(shares.samples) == samples and min(shares.samples) >= 1
        for member, num in zip(members, shares.samples, strict=True):
            assert member.fixed_bytes + num * member.bytes_per_sample <= member.capacity_bytes


@settings(max_examples=200, deadline=None)
@given(MEMBERS, st.integers(1, 30))
def test_shares_are_never_slower_than_even_ones(members: list[Member], samples: int) -> None:
    shares = best_shares(members, samples)
    if isinstance(shares, Shares):
        assert shares.seconds <= shares.even_seconds * (1 + 1e-9)


@settings(max_examples=100, deadline=None)
@given(MEMBERS, st.integers(1, 30), st.integers(1, 50))
def test_more_memory_never_makes_the_shares_slower(members: list[Member], samples: int, more_bytes: int) -> None:
    larger = [replace(member, capacity_bytes=member.capacity_bytes + more_bytes) for member in members]
    before, after = (slowest_seconds(group, samples) for group in (members, larger))
    assert after <= before * (1 + 1e-9)


def test_shares_are_proportional_to_speed_where_memory_is_no_limit() -> None:
    shares = best_shares([Member(1, 1, 1000)] * 8 + [Member(1.6875, 1, 1000)] * 8, 512)
    assert isinstance(shares, Shares)
    assert shares.samples == (40,) * 8 + (24,) * 8  # V100 and P100 by FLOP/s: 15.7 : 9.3
    assert shares.even_seconds / shares.seconds == pytest.approx(32 / 24)


def test_a_fast_device_takes_no_more_than_fits() -> None:
    shares = best_shares([Member(1, 10, 100), Member(4, 10, 1000)], 30)
    assert isinstance(shares, Shares)
    assert shares.samples == (10, 20)
    assert "memory limits 1 of 2 ranks" in shares.reason


def test_too_few_samples_and_too_little_memory_are_refused() -> None:
    for members, samples in (([Member(1, 1, 9)] * 3, 2), ([Member(1, 5, 9)] * 2, 4), ([Member(1, 10, 9)] * 2, 4)):
        answer = best_shares(members, samples)
        assert isinstance(answer, NoPlan) and "use " in answer.reason


def test_a_rank_takes_time_for_a_sample() -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        Member(0, 1, 1)
