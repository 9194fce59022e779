"""Runs every family of ``transformers`` for real, and lists those whose training step works with ``make``'s inputs.

``python -m benchmarks.covering.models.listing [FAMILY …]`` writes ``listed.json``: seconds and parameters of each
family that runs, and the error of each that does not. Only families in the first list are cases of the benchmark,
whatever the estimator says about them. Run it again when transformers or ``make`` changes; it takes about twenty
minutes.
"""

from __future__ import annotations

import json
import resource
import sys
import time
import warnings
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from benchmarks.covering.models.families import find_task, make
from benchmarks.curves.forks import in_forks, limited
from workloads.function import FunctionWorkload
from workloads.training.step import train_step

FILE = Path(__file__).with_name("listed.json")
BATCH, NUM_STEPS, SECONDS, MEMORY_BYTES, MOST_PARAMETERS = 3, 2, 60, 4 << 30, 200_000_000


def main() -> None:
    """List the families named on the command line, or all of them."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    import_module("transformers.modeling_utils")
    listed = json.loads(FILE.read_text()) if FILE.exists() else {"runs": {}, "fails": {}}
    for family in sys.argv[1:] or trainable():
        ran = _in_fork(family)
        listed["runs"].pop(family, None), listed["fails"].pop(family, None)
        listed["fails" if "error" in ran else "runs"][family] = ran.get("error") or ran
        print(family, ran, flush=True)
        FILE.write_text(_lines({kind: dict(sorted(by_family.items())) for kind, by_family in listed.items()}))


def trainable() -> list[str]:
    """Every family that has a class for one of the tasks."""
    families = import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING_NAMES

    def has_task(family: str) -> bool:
        try:
            return bool(find_task(family))
        except ValueError:
            return False

    return [family for family in families if has_task(family)]


def _lines(listed: dict[str, dict[str, Any]]) -> str:
    """JSON with one line for each family."""
    parts = []
    for kind, by_family in listed.items():
        inner = ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in by_family.items())
        parts.append(f'"{kind}": {{\n{inner}\n}}')
    return "{" + ",\n".join(parts) + "}\n"


def _in_fork(family: str) -> dict[str, Any]:
    (answer,) = in_forks([partial(limited, partial(_run, family), SECONDS, MEMORY_BYTES)], 100 * SECONDS)
    return (
        {"error": f"takes more than {SECONDS} s of processor time, or crashes"} if isinstance(answer, str) else answer
    )


def _run(family: str) -> dict[str, Any]:
    torch.manual_seed(0)
    try:
        workload = FunctionWorkload(make, {"family": family, "batch": BATCH})
        model = workload.build_model()
        num_parameters = sum(parameter.numel() for parameter in model.parameters())
        if num_parameters > MOST_PARAMETERS:
            return {"error": f"has {num_parameters / 1e6:.0f} million parameters in spite of shrinking"}
        optimizer, began = workload.optimizer(model), time.monotonic()
        for _ in range(NUM_STEPS):
            train_step(workload, model, optimizer, [workload.train_batch(torch.arange(BATCH))], 1)
    except BaseException as error:
        return {"error": " ".join(f"{type(error).__name__}: {error}".split())[:200]}
    resident_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return {"seconds": round(time.monotonic() - began, 1), "parameters": num_parameters, "resident_mib": resident_mib}


if __name__ == "__main__":
    main()
