"""Measures the search: whether ScaMP's samplers propose what Optuna's own do, the study database as its storage, and
samplers and stopping rules on a table of learning curves.

Prints a table, and as its last line one line of JSON. ``--quick`` takes at most a minute.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from typing import Any

import torch

from benchmarks.searching.asking import asking
from benchmarks.searching.equal_samplers import CASES, first_difference
from benchmarks.searching.launched import launched
from benchmarks.searching.one_shot import STEPS, one_shot
from benchmarks.searching.population import population
from benchmarks.searching.proxy_ranks import proxy_ranks
from benchmarks.searching.regret import regrets
from benchmarks.searching.resuming import resuming
from benchmarks.searching.storage_contract import storage_contract
from benchmarks.searching.tables import hpobench, nas201

NAS201_SEEDS = {"tpe": 20, "nsga2": 20, "evolution": 20, "gp": 3}
HPOBENCH_SEEDS = {"tpe": 20, "nsga2": 20, "cmaes": 20, "evolution": 20, "gp": 3}
"""Samplers on each table, and seeds of each. A search by ``gp`` takes as long as thirty by ``tpe``."""


def main() -> None:
    """Measure each part, and print a table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few seeds, fewer trials and samplers, and SQLite alone")
    options = parser.parse_args()
    torch.set_num_threads(1)  # processes that are forked later would wait for the threads of this one
    quick = options.quick
    figures = {
        **equal_samplers(num_seeds=1 if quick else 5),
        **storage_contract(with_postgresql=not quick),
        **asking(num_asks=3 if quick else 15),
        **(nas201({"nsga2": 2}, 30) if quick else nas201(NAS201_SEEDS)),
        **(hpobench({"tpe": 2}, 15) if quick else hpobench(HPOBENCH_SEEDS)),
        **launched(num_seeds=2 if quick else 20),
        **regrets(num_seeds=2 if quick else 40),
        **population(num_seeds=2 if quick else 20),
        **proxy_ranks(num_seeds=1 if quick else 5),
        **one_shot(num_seeds=1 if quick else 4, steps=100 if quick else STEPS),
        **(resuming(["promoted to FSDP", "copied"]) if quick else resuming()),
    }
    print(json.dumps(figures))


def equal_samplers(num_seeds: int) -> Mapping[str, Any]:
    """The samplers whose candidates are identical to Optuna's own, and those that differ."""
    print(f"{'sampler':18}{'trials':>8}{'seeds':>7}{'seconds':>9}  candidates")
    different = []
    for name, case in CASES.items():
        began = time.monotonic()
        places = [first_difference(case, seed) for seed in range(num_seeds)]
        wrong = [place for place in places if place is not None]
        words = f"differ from trial {min(wrong)} on" if wrong else "identical to Optuna's"
        print(f"{name:18}{case.trials:>8}{num_seeds:>7}{time.monotonic() - began:>9.1f}  {words}")
        different += [name] * bool(wrong)
    return {"samplers_equal": len(CASES) - len(different), "samplers_different": different}


if __name__ == "__main__":
    main()
