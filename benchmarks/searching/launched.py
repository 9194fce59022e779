"""Candidates that a search launches although they are infeasible or off its Pareto front, with and without knowing
before the launch what they cost.

The networks are those of the table of learning curves, in a user's file. What is predicted of them comes from a trace
of each: ``python -m benchmarks.searching.launched`` traces them and writes ``predicted_table.json`` beside this file,
which is committed. Both searches of a pair have the same sampler (TPE), seed and number of trials. The one without
predictions launches every candidate, as it cannot know better.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from statistics import fmean, quantiles, stdev
from typing import Any

from benchmarks.searching.compared import FIRST_SEED, Trial, spec_of
from benchmarks.searching.curve_table import BATCH, SPACE, curves, key_of
from estimators.model import MIB
from scamp_service.lifecycle import TrialState
from scamp_service.search.proposals import Search
from scamp_service.study.objectives import Values

FILE = Path(__file__).with_name("predicted_table.json")
FOLDER, WORKLOAD = Path(__file__).parent / "own_code", "digits_mlp.py:Digits"
NUM_TRIALS = 60
ACCURACY = {"metric": "accuracy", "direction": "maximize"}
PEAK = {"metric": "predicted.peak_mib", "direction": "minimize"}
SIZE = {"metric": "predicted.parameters", "direction": "maximize"}
STUDIES: Mapping[str, tuple[Any, int | None]] = {
    "accuracy and memory, a quarter of the networks within the bound": ([ACCURACY, PEAK], 0),
    "accuracy and memory, half of the networks within the bound": ([ACCURACY, PEAK], 1),
    "all objectives predicted: parameters and memory": ([SIZE, PEAK], None),
}
"""Objectives, and which quartile of the FLOPs bounds those of a candidate."""
Quantities = Mapping[str, float]


@cache
def predicted() -> Mapping[tuple[Any, ...], Quantities]:
    """The committed table: (width, depth, whether there is dropout) → what is predicted."""
    rows = json.loads(FILE.read_text())
    return {(row["width"], row["depth"], row["dropout"] > 0): row for row in rows}


def num_wasted(objectives: Any, quartile: int | None, seed: int, *, knows: bool) -> tuple[int, int]:
    """Launched candidates that break the bound, and those that are off the front that the search has found within it.

    Where all objectives are predicted, a study that knows them launches nothing before it knows every candidate, and
    then those on the front alone (``control.decide.place``).
    """
    limit = None if quartile is None else quantiles((row["flops"] for row in predicted().values()), n=4)[quartile]
    bounds = {} if limit is None or not knows else {"predicted": {"flops": {"max": limit}}}
    spec = spec_of(SPACE, objectives, "tpe", seed, NUM_TRIALS, **bounds)
    search, every, launched = Search(spec), spec.every_objective, list[tuple[bool, Values]]()
    ended: list[Trial] = []
    for number in range(NUM_TRIALS):
        (params,) = search.propose(ended, number, 1)
        row = predicted()[params["width"], params["depth"], params["dropout"] > 0]
        accuracy, fits = max(curves()[key_of(params)].accuracies), limit is None or row["flops"] <= limit
        trained = (
            Trial(number, params, accuracy, values=(accuracy, None), quantities=row)
            if every.measured
            else Trial(number, params, row["parameters"], quantities=row)
        )
        values = every.values_of(trained)
        assert values is not None
        if knows and not fits:
            trained = Trial(number, params, state=TrialState.INFEASIBLE, quantities=row)
        else:
            launched.append((fits, values))
        ended = [trained]
    if knows and every.are_predicted:
        launched = [launched[place] for place in every.front([values for _, values in launched])]
    feasible = [values for fits, values in launched if fits]
    return len(launched) - len(feasible), len(feasible) - len(every.front(feasible))


def launched(num_seeds: int) -> Mapping[str, Any]:
    """Ratio of wasted launches with predictions to those without, for each study, and both kinds of them."""
    print(f"\n{f'launched in vain, of {NUM_TRIALS} candidates':68}{'with':>16}{'without':>16}")
    ratios, kinds = {}, {}
    for name, study in STUDIES.items():
        seeds = range(FIRST_SEED, FIRST_SEED + num_seeds)
        both = [[num_wasted(*study, seed, knows=knows) for seed in seeds] for knows in (True, False)]
        sums = [[sum(counts) for counts in kind_counts] for kind_counts in both]
        ratios[name] = round(fmean(sums[0]) / fmean(sums[1]), 3)
        kinds[name] = [[round(fmean(kind), 1) for kind in zip(*kind_counts, strict=True)] for kind_counts in both]
        print(f"{name:68}{''.join(f'{fmean(counts):9.1f} ±{stdev(counts):5.1f}' for counts in sums)}")
        infeasible_and_off = "".join(f"{infeasible:9.1f} +{off:5.1f}" for infeasible, off in kinds[name])
        print(f"{'  infeasible + off the front':68}{infeasible_and_off}")
    print(f"mean ± standard deviation over {num_seeds} seeds")
    return {"launched_ratio": ratios, "launched_infeasible_and_off_front": kinds, "launched_seeds": num_seeds}


def traced() -> Iterator[Quantities]:
    """Predicted quantities of each network, from a trace of it."""
    from scamp_service.sizing.estimate import Estimator, equal_devices
    from scamp_service.sizing.tracing.options import Tracing
    from scamp_service.study.user_code.bundling import bundle_code

    names = ("width", "depth", "dropout")
    code = bundle_code(FOLDER / "study.yaml", WORKLOAD)
    with tempfile.TemporaryDirectory() as cache_dir, Estimator(WORKLOAD, code, Tracing(Path(cache_dir))) as estimator:
        for point in itertools.product(*(SPACE[name]["ordinal"] for name in names[:2]), (0.0, 0.2)):
            params = dict(zip(names, point, strict=True))
            estimate = estimator.estimate({"lr": 1e-3, "batch": BATCH, **params}, equal_devices(1, 96))
            yield {
                **params,
                "peak_mib": round(estimate.choice.prediction.expected_bytes / MIB, 4),  # type: ignore[union-attr]
                "flops": estimate.profile.flops_per_sample or 0.0,
                "parameters": estimate.profile.num_params,
            }


if __name__ == "__main__":
    FILE.write_text(json.dumps(list(traced())) + "\n")
