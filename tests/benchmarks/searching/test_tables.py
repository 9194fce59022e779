"""Public tables: a search finds what is in them, and a better one has the smaller regret."""

from __future__ import annotations

import pytest

from benchmarks.searching.compared import _ratio
from benchmarks.searching.tables import HPO, NAS201, ours, theirs

pytestmark = [  # the library leaves its files open
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
]


def test_values_are_those_of_the_tables() -> None:
    table = HPO[0]
    params = {name: values[0] for name, values in table.benchmark.search_space.items()}
    rows = table.benchmark(table.dataset, seed=0)
    drawn = [rows(params)["val_acc"] for _ in range(200)]
    assert min(drawn) <= table.value(params) <= max(drawn) <= table.best


def test_regrets_of_both_sides_end_at_zero_and_evolution_beats_chance() -> None:
    table = NAS201[0].dataset
    assert 0 <= ours(table, "tpe", 0, 15) < 5 and 0 <= theirs(table, "tpe", 0, 15) < 5
    evolved, random = ([ours(table, sampler, seed, 100) for seed in range(4)] for sampler in ("evolution", "random"))
    assert sum(evolved) < sum(random)


def test_the_ratio_weighs_data_sets_alike_and_has_an_interval() -> None:
    random = {"easy": [1.0, 3.0], "hard": [100.0, 300.0]}
    halves = {name: [value / 2 for value in values] for name, values in random.items()}
    mean, low, high = _ratio(halves, random, random)
    assert mean == 0.5
    assert low is not None
    assert high is not None
    assert low < 0.5 < high


def test_a_search_that_always_finds_the_best_has_no_regret_to_divide_by() -> None:
    random, none = {"easy": [1.0, 3.0]}, {"easy": [0.0, 0.0]}
    assert _ratio(none, random, random) == (0.0, 0.0, 0.0)
    assert _ratio(random, none, random) == (None, None, None)
    assert _ratio(none, none, random) == (1.0, 1.0, 1.0)
