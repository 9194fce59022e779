"""Offers of clusters are compared by the number, size and kind of their devices."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from placement.model import Cluster, Device, Offer, offers_more


def cluster(*devices: tuple[str, int]) -> Cluster:
    return Cluster(tuple(Device(f"n/{i}", "n", i, kind, mib) for i, (kind, mib) in enumerate(devices)))


def test_an_offer_counts_devices_of_each_kind_and_size() -> None:
    assert cluster(("L4", 96), ("A10", 50), ("L4", 96)).offer == (("A10", 50, 1), ("L4", 96, 2))
    assert Cluster().offer == ()


def test_more_larger_or_other_devices_are_more_and_fewer_or_smaller_ones_are_not() -> None:
    before: Offer = (("L4", 96, 2),)
    for more in ((("L4", 96, 3),), (("L4", 97, 1), ("L4", 96, 1)), (("A10", 1, 1), ("L4", 96, 1))):
        assert offers_more(more, before)
    for fewer in (before, (), (("L4", 95, 2),), (("L4", 90, 1), ("L4", 96, 1))):
        assert not offers_more(fewer, before)


DEVICES = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(1, 4)), max_size=5)


@given(DEVICES, DEVICES)
def test_a_cluster_offers_no_more_exactly_when_each_of_its_devices_could_be_replaced(
    now: list[tuple[str, int]], then: list[tuple[str, int]]
) -> None:
    """The definition by pairs: give each device one of the same kind, at least as large, that was there before."""
    left = sorted(then)
    replaced = True
    for kind, mib in sorted(now, reverse=True):
        larger = [device for device in left if device[0] == kind and device[1] >= mib]
        if larger:
            left.remove(larger[-1])
        else:
            replaced = False
    assert offers_more(cluster(*now).offer, cluster(*then).offer) is not replaced
