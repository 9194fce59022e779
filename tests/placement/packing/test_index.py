"""The index of devices by free memory agrees with a search through all devices, whatever was changed before."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from placement.packing.index import ABSENT, FreeIndex

changes = st.lists(st.tuples(st.integers(0, 11), st.integers(ABSENT, 5)), max_size=40)


@settings(max_examples=150, deadline=None)
@given(changes, st.integers(1, 5), st.integers(1, 8), st.integers(0, 5))
def test_the_index_finds_the_fullest_devices_on_as_few_nodes_as_a_search_through_all(
    history: list[tuple[int, int]], per_node: int, num_ranks: int, mib: int
) -> None:
    node_of = [device // per_node for device in range(12)]
    index, free = FreeIndex(node_of), [ABSENT] * 12
    for device, free_mib in history:
        index.set(device, free_mib)
        free[device] = free_mib
    able = [device for device in range(12) if free[device] >= mib]
    assert index.num_with(mib) == len(able)
    assert index.devices_with(mib) == sorted(able, key=lambda device: (free[device], device))
    found = index.find(num_ranks, mib)
    if len(able) < num_ranks:
        assert found is None
        return
    assert found is not None
    assert len(set(found)) == num_ranks and set(found) <= set(able)
    on_node = sorted((sum(node_of[device] == node for device in able) for node in set(node_of)), reverse=True)
    fewest = next(n for n in range(1, 13) if sum(on_node[:n]) >= num_ranks)
    assert len({node_of[device] for device in found}) == fewest
    if num_ranks == 1:
        assert free[found[0]] == min(free[device] for device in able)
