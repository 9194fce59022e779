"""A grid has every point once, and none that was tried before."""

from __future__ import annotations

import itertools
import random
import tracemalloc

import pytest

from scamp_service.search.proposals import Search
from tests.scamp_service.search.studies import GRID, study


def test_a_grid_visits_every_point_once_and_ends() -> None:
    search = Search(study(GRID, "grid", fixed={"batch": 8}))
    first, second = search.propose([], 0, 20), search.propose([], 20, 20)
    assert (len(first), len(second), search.propose([], 24, 5)) == (20, 4, [])
    points = {(p["a"], p["b"], p["c"]) for p in first + second}
    assert points == {(a, b, c) for a in "xy" for b in (1, 3, 5) for c in (0.0, 0.1, 0.2, 0.3)}
    assert all(p["batch"] == 8 for p in first)
    assert Search(study(GRID, "grid", fixed={"batch": 8})).propose([], 20, 20) == second
    assert len({p["a"] for p in first[:6]}) == 2, "shuffled: a short budget sees all axes"


def test_a_grid_does_not_repeat_what_was_tried_first() -> None:
    search = Search(study(GRID, "grid", start_with=[{"a": "x", "b": 3, "c": 0.2}, {"a": "y"}]))
    proposed = search.propose([], 0, 100)
    assert len(proposed) == 24
    assert len({str(p) for p in proposed}) == 24
    assert proposed[0] == {"a": "x", "b": 3, "c": 0.2}
    assert search.propose([], 1, 100) == proposed[1:]


@pytest.mark.full
def test_a_large_grid_is_never_written_out_and_keeps_its_order() -> None:
    """A grid that was begun by an earlier version continues: its points were shuffled as a list."""
    side = {"low": 1, "high": 100}
    space = {"a": side, "b": side, "c": {"choice": list("abcdefghij")}}
    tried = [{"a": a, "b": 1, "c": "b"} for a in range(1, 101)]
    search = Search(study(space, "grid", start_with=tried))
    tracemalloc.start()
    proposed = search.propose([], 100, 3)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 5 * 2**20, "a dict for each of 100,000 points takes over 20 MiB"
    points = [{"a": a, "b": b, "c": c} for a, b, c in itertools.product(range(1, 101), range(1, 101), "abcdefghij")]
    random.Random(3).shuffle(points)
    assert proposed == [point for point in points[:200] if point not in tried][:3]
    assert search.propose([], 99_999, 5) == [point for point in points[-200:] if point not in tried][-1:]
