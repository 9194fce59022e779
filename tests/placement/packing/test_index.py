"""The index of devices by free memory agrees with a search through all devices, whatever was changed before."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from placement.packing.index import ABSENT, FreeIndex

changes = st.lists(
    st.tuples(st.integers(0, 11), st.sampled_from([ABSENT, 0, 1, 2, 900, 1023, 1024, 3000])), max_size=40
)


@settings(max_examples=150, deadline=None)
@given(changes, st.integers(1, 5), st.integers(1, 8), st.sampled_from([0, 1, 2, 1000, 1024, 2000, 9000]))
def test_the_index_finds_the_fullest_devices_on_as_few_nodes_as_a_search_through_all(
    history: list[tuple[int, int]], per_node: int, num_ranks: int, mib: int
) -> None:
    node_of = [device // per_node for device in range(12)]
    index, free = FreeIndex(node_of), [ABSENT] * 12
    for start in range(0, len(history), 3):
        together = dict(history[start : start + 3])
        index.set(together.items())
        for device, free_mib in together.items():
            free[device] = free_mib
    able = [device for device in range(12) if free[device] >= mib]
    assert index.num_with(mib) == len(able)
    assert index.devices_with(mib) == sorted(able, key=lambda device: (free[device], device))
    devices = index.find(num_ranks, mib)
    if len(able) < num_ranks:
        assert devices is None
        return
    assert devices is not None
    assert len(set(devices)) == num_ranks and set(devices) <= set(able)
    on_node = sorted((sum(node_of[device] == node for device in able) for node in set(node_of)), reverse=True)
    fewest = next(n for n in range(1, 13) if sum(on_node[:n]) >= num_ranks)
    assert len({node_of[device] for device in devices}) == fewest
    if num_ranks == 1:
        assert free[devices[0]] == min(free[device] for device in able)
