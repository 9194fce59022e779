"""The devices that an autoscaler is told to have, and the nodes that it gets back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.model import Cluster, Device
from placement.packing.autoscaling import devices_wanted, nodes_to_give_back, with_devices_to_come


@pytest.mark.parametrize(
    ("num_in_use", "waiting", "most", "expected"),
    [
        (0, [], 8, 0),
        (3, [], 2, 3),
        (2, [1, 4], 8, 7),
        (2, [4, 4, 1], 8, 7),
        (0, [16], 8, 0),
    ],
)
def test_whole_gangs_are_wanted_up_to_the_limit(num_in_use: int, waiting: list[int], most: int, expected: int) -> None:
    assert devices_wanted(num_in_use, waiting, most) == expected


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 8)),
    st.sets(st.sampled_from("abcdef")),
    st.integers(0, 40),
)
def test_nodes_in_use_stay_and_no_other_node_could_be_given_back(
    num_devices: dict[str, int], in_use: set[str], num_wanted: int
) -> None:
    given_back = nodes_to_give_back(num_devices, frozenset(in_use), num_wanted)
    assert given_back.isdisjoint(in_use)
    kept = {node: number for node, number in num_devices.items() if node not in given_back}
    assert not given_back or sum(kept.values()) >= num_wanted
    assert all(sum(kept.values()) - number < num_wanted for node, number in kept.items() if node not in in_use)


def test_devices_to_come_are_on_nodes_like_the_largest_one() -> None:
    small = Device("a/0", "a", 0, "virtual", 24)
    large = tuple(Device(f"b/{index}", "b", index, "virtual", 96) for index in range(2))
    cluster = Cluster((small, *large))
    offered = with_devices_to_come(cluster, 6)
    assert offered.offer == (("virtual", 24, 1), ("virtual", 96, 5))
    assert [device.node for device in offered.devices[3:]] == ["to-come-0", "to-come-0", "to-come-1"]
    assert with_devices_to_come(cluster, 3) == cluster == with_devices_to_come(cluster, 0)
    assert with_devices_to_come(Cluster(), 8) == Cluster(), "nothing is known of them"
