"""A table of learning curves: every point of a small real search space, trained once.

``python -m benchmarks.searching.curve_table`` trains them (about three minutes on one core) and writes
``curve_table.json`` beside this file, which is committed. Each is a multilayer perceptron on scikit-learn's 1,797
handwritten digits, 597 of them held out, trained by AdamW on one thread with the seed of its place in the table.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

FILE = Path(__file__).with_name("curve_table.json")
SPACE: Mapping[str, Any] = {
    "lr": {"ordinal": [1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2]},
    "width": {"ordinal": [8, 16, 32, 64]},
    "depth": {"ordinal": [1, 2, 4]},
    "dropout": {"ordinal": [0.0, 0.2, 0.5]},
}
STEPS, REPORT_EVERY, BATCH, NUM_TRAIN = 162, 6, 32, 1200


@dataclass(frozen=True, slots=True)
class Curve:
    """One candidate: its accuracy at each report, and the seconds of a step."""

    accuracies: Sequence[float]
    step_seconds: float


@cache
def curves() -> Mapping[tuple[Any, ...], Curve]:
    """The committed table: values in the order of ``SPACE`` → curve."""
    rows = json.loads(FILE.read_text())["rows"]
    return {tuple(row["params"]): Curve(row["accuracies"], row["step_seconds"]) for row in rows}


def key_of(params: Mapping[str, Any]) -> tuple[Any, ...]:
    """The key of a candidate in ``curves``."""
    return tuple(params[name] for name in SPACE)


def layers_of(params: Mapping[str, Any]) -> list[Any]:
    """New layers of a candidate."""
    from torch import nn

    sizes = [64, *[params["width"]] * params["depth"]]
    hidden = [
        module
        for before, after in itertools.pairwise(sizes)
        for module in (nn.Linear(before, after), nn.ReLU(), nn.Dropout(params["dropout"]))
    ]
    return [*hidden, nn.Linear(sizes[-1], 10)]


def trained(index: int, params: Mapping[str, Any]) -> Curve:
    """Train one candidate."""
    import torch
    from sklearn.datasets import load_digits
    from torch import nn

    torch.set_num_threads(1)
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(digits.data, dtype=torch.float32)[order] / 16
    labels = torch.tensor(digits.target)[order]
    torch.manual_seed(index)
    model = nn.Sequential(*layers_of(params))
    optimizer = torch.optim.AdamW(model.parameters(), lr=params["lr"])
    accuracies, seconds = [], []
    for step in range(1, STEPS + 1):
        chosen = torch.randint(NUM_TRAIN, (BATCH,))
        began = time.perf_counter()
        loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - began)
        if step % REPORT_EVERY == 0:
            model.eval()
            with torch.no_grad():
                right = model(images[NUM_TRAIN:]).argmax(-1) == labels[NUM_TRAIN:]
            accuracies.append(round(right.float().mean().item(), 4))
            model.train()
    return Curve(accuracies, round(median(seconds), 6))


def main() -> None:
    """Train every candidate and write the table."""
    rows = []
    choices = [dimension["ordinal"] for dimension in SPACE.values()]
    for index, values in enumerate(itertools.product(*choices)):
        curve = trained(index, dict(zip(SPACE, values, strict=True)))
        rows.append({"params": values, "accuracies": curve.accuracies, "step_seconds": curve.step_seconds})
    lines = ",\n".join(json.dumps(row) for row in rows)
    FILE.write_text(f'{{"steps": {STEPS}, "report_every": {REPORT_EVERY}, "rows": [\n{lines}\n]}}\n')
    print(f"{len(rows)} curves")


if __name__ == "__main__":
    main()
