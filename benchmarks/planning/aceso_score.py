"""Scores a plan by Aceso's own cost model, which runs from the checkout that the user names, as its authors run it.

The plan is written as a file of Aceso's configurations; the score is what the model writes for each stage.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.planning.aceso_profile import FOLDER, MICRO_BATCHES, Machine, Unit
from estimators.model import MIB
from placement.exact.search import StagedPlan

_MODEL = "search/aceso_cost_model.py"


@dataclass(frozen=True, slots=True)
class Score:
    """Seconds of a step, and bytes of one GPU of each stage."""

    seconds: float
    stage_bytes: tuple[int, ...]


def score_of(checkout: Path, profile: str, config: Mapping[str, Any], machine: Machine) -> Score:
    """The score of a configuration with the profile of this name. Raises ``ValueError`` if the cost model fails."""
    folder = checkout.resolve()
    with TemporaryDirectory() as room:
        plan, table = Path(room) / "plan.json", Path(room) / "stages.csv"
        plan.write_text(json.dumps(config))
        command = [sys.executable, "-B", Path(_MODEL).name, f"--initial-point={plan}", f"--save-to-csv={table}"]
        command += [f"--profiled-time-path={folder / FOLDER}{profile}/", f"--memory-limit={machine.capacity_mib}"]
        command += [f"--num-nodes={machine.num_nodes}", f"--num-gpus-per-node={machine.gpus_per_node}"]
        command += ["--micro-batch-size", *map(str, MICRO_BATCHES)]
        try:
            subprocess.run(command, cwd=(folder / _MODEL).parent, capture_output=True, text=True, check=True)
            rows = list(csv.DictReader(table.read_text().splitlines()))
        except subprocess.CalledProcessError as error:
            last = (error.stderr or "no message").strip().splitlines()[-1]
            raise ValueError(f"{folder / _MODEL} failed ({last}): use the branch Aceso, unchanged") from error
        except OSError as error:
            raise ValueError(f"{folder} has no cost model of Aceso ({error}): name a checkout of it") from error
    seconds = max(float(row["time"]) for row in rows) / 1000
    return Score(seconds, tuple(round(float(row["memory(total)"]) * MIB) for row in rows))


def config_of(plan: StagedPlan, units: Sequence[Unit], model: Mapping[str, Any], batch: int) -> dict[str, Any]:
    """The plan as a configuration of Aceso: its lists have a list for each stage, with a number for each operator.

    ``model`` has the fields that name the model.
    """
    tp, dp = plan.spread.tp, plan.spread.dp_replicate
    recomputed = set(plan.recomputed)
    by_unit = [[int(index in recomputed)] * len(unit) for index, unit in enumerate(units)]
    bounds = pairwise(accumulate(plan.cut, initial=0))
    flags = [[flag for flags in by_unit[start:end] for flag in flags] for start, end in bounds]
    return {
        **model,
        "global_batch_size": batch,
        "micro_batch_size": plan.micro_batch * dp,
        "num_stages": len(flags),
        "num_gpus": [tp * dp] * len(flags),
        "checkpoint_activations": [any(stage) for stage in flags],
        "resharding_stages": [False] * len(flags),
        "num_ops_in_each_stage": [len(stage) for stage in flags],
        "model_parallel_size_of_each_op": [[tp] * len(stage) for stage in flags],
        "data_parallel_size_of_each_op": [[dp] * len(stage) for stage in flags],
        "recompute_ops": flags,
        "algo_of_each_op": [[0] * len(stage) for stage in flags],
    }
