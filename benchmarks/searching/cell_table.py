"""A table of convolutional cells that were really trained, with which the rankings by a supernet are compared.

``python -m benchmarks.searching.cell_table`` draws ``NUM`` candidates of ``examples/cells.py`` by a seed and trains
each with ``SEEDS`` (about ten minutes on one core). It writes ``cell_table.json`` beside this file, which is committed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from workloads.loading import load_workload
from workloads.protocol import Workload
from workloads.training.samples import batch_indices
from workloads.training.step import train_step

FILE = Path(__file__).with_name("cell_table.json")
EXAMPLES = Path(__file__).parents[2] / "examples"
WORKLOAD = "cells.py:Digits"
NUM, DRAWN_BY, SEEDS, STEPS, BATCH = 48, 2026, (0, 1), 200, 32


@dataclass(frozen=True, slots=True)
class Row:
    """One candidate: its parameters, and its held-out accuracy for each of ``SEEDS``."""

    params: Mapping[str, Any]
    accuracies: Sequence[float]


@cache
def cells() -> Sequence[Row]:
    """The committed table."""
    return [Row(row["params"], row["accuracies"]) for row in json.loads(FILE.read_text())["rows"]]


def workload_of(params: Mapping[str, Any]) -> Workload:
    """The workload of a candidate, or of the supernet."""
    return load_workload(WORKLOAD, EXAMPLES)(params)


def drawn() -> Sequence[Mapping[str, Any]]:
    """The candidates of the table: different ones, each with a convolution."""
    candidate, draws = load_workload(WORKLOAD, EXAMPLES).build_model.__globals__["candidate"], random.Random(DRAWN_BY)
    drawn_cells: list[Mapping[str, Any]] = []
    while len(drawn_cells) < NUM:
        params = candidate(0.5, draws)
        if params not in drawn_cells and any(edge["op"].startswith("conv") for edge in params["edges"]):
            drawn_cells.append(params)
    return drawn_cells


def trained(params: Mapping[str, Any], seed: int, steps: int) -> nn.Module:
    """The model of a candidate, or of the supernet, after ``steps`` optimizer steps on one thread."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    workload = workload_of(params)
    model = workload.build_model()
    optimizer = workload.optimizer(model)
    for step in range(steps):
        workload.on_step(step, steps, optimizer)
        indices = batch_indices(workload.num_train, BATCH, step, seed)
        train_step(workload, model, optimizer, [workload.train_batch(indices)], 1)
    return model


def accuracy(params: Mapping[str, Any], model: nn.Module) -> float:
    """Held-out accuracy of a candidate."""
    workload = workload_of(params)
    with torch.no_grad():
        measured = workload.evaluate(model, workload.eval_batch(torch.arange(workload.num_eval)))
    assert isinstance(measured, Mapping)
    return round(measured["accuracy"].mean().item(), 4)


def main() -> None:
    """Train every candidate and write the table."""
    rows = [
        {"params": params, "accuracies": [accuracy(params, trained(params, seed, STEPS)) for seed in SEEDS]}
        for params in drawn()
    ]
    lines = ",\n".join(json.dumps(row) for row in rows)
    how = {"workload": WORKLOAD, "drawn_by": DRAWN_BY, "seeds": SEEDS, "steps": STEPS, "batch": BATCH}
    FILE.write_text(f'{{"how": {json.dumps(how)}, "rows": [\n{lines}\n]}}\n')
    print(f"{len(rows)} candidates")


if __name__ == "__main__":
    main()
