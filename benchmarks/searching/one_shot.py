"""Compares the ranking of cells by the shared weights of a supernet with the table of cells that were really trained.

The supernet trains as in a study with the sampler ``one_shot``, and each cell begins with the weights that it inherits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from scipy.stats import kendalltau

from benchmarks.searching.cell_table import Row, accuracy, cells, trained, workload_of

SUPERNET = {"supernet": True}
STEPS = 800
"""Optimizer steps of the supernet: four times as many as each cell of the table has had."""
FIRST_SEED = 100
"""Seeds below it were looked at while this was written."""


def scores(rows: Sequence[Row], seed: int, steps: int) -> list[float]:
    """Held-out accuracy of each cell with the weights of a supernet, without training of its own."""
    supernet = trained(SUPERNET, seed, steps)
    accuracies = []
    for row in rows:
        workload = workload_of(row.params)
        model = workload.build_model()
        workload.inherit(model, supernet, SUPERNET)
        accuracies.append(accuracy(row.params, model))
    return accuracies


def one_shot(num_seeds: int, steps: int = STEPS) -> Mapping[str, Any]:
    """Kendall's tau between both rankings, and the rank in the table of the best cell by shared weights."""
    rows = cells()
    truth = [fmean(row.accuracies) for row in rows]
    order = sorted(range(len(rows)), key=lambda place: -truth[place])
    taus, ranks = [], []
    for seed in range(FIRST_SEED, FIRST_SEED + num_seeds):
        shared_scores = scores(rows, seed, steps)
        taus.append(float(kendalltau(shared_scores, truth).statistic))
        best = sorted(range(len(rows)), key=lambda place: -shared_scores[place])[:3]
        ranks.append(1 + min(order.index(place) for place in best))
    own_tau = float(kendalltau([row.accuracies[0] for row in rows], [row.accuracies[1] for row in rows]).statistic)
    spread = stdev(taus) if len(taus) > 1 else 0.0
    print(f"\n{len(rows)} cells ranked by a supernet of {steps} steps, and after training alone ({num_seeds} seeds)")
    print(f"Kendall's tau {fmean(taus):.3f} ± {spread:.3f}; between two trainings alone with other seeds {own_tau:.3f}")
    print(f"the best of its first three cells is number {fmean(ranks):.1f} of the table on average")
    return {
        "oneshot_kendall_tau": round(fmean(taus), 3),
        "oneshot_steps": steps,
        "oneshot_kendall_tau_spread": round(spread, 3),
        "retrained_kendall_tau": round(own_tau, 3),
        "oneshot_best_of_three_rank": round(fmean(ranks), 1),
    }
