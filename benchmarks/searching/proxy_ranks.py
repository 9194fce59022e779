"""Rank correlation of zero-cost proxies with the accuracies of candidates that were really trained.

The candidates are the convolutional cells of ``cell_table``, and the networks of ``curve_table``. Proxies know nothing
of the learning rate, so for the latter Kendall's tau-b is given over all candidates, and over architectures by the best
candidate of each. The number of parameters and the FLOPs are the baseline: a proxy that ranks no better than they do
says nothing more than the size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from statistics import fmean
from typing import Any

import torch
from scipy.stats import kendalltau
from sklearn.datasets import load_digits
from torch import Tensor, nn

from benchmarks.searching.cell_table import BATCH as CELL_BATCH
from benchmarks.searching.cell_table import cells, workload_of
from benchmarks.searching.curve_table import BATCH, NUM_TRAIN, SPACE, curves, layers_of
from workloads.protocol import Workload
from workloads.sandbox.proxies import PROXIES, proxy


class Candidate(Workload):
    """A candidate of the table."""

    num_train, num_eval, default_batch = NUM_TRAIN, 597, BATCH

    def build_model(self) -> nn.Module:
        return nn.Sequential(*layers_of(self.params))

    def train_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return digits()[0][indices], digits()[1][indices]

    eval_batch = train_batch

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def evaluate(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        return {}


def proxy_ranks(num_seeds: int) -> Mapping[str, Any]:
    """Kendall's tau of each proxy, whose value is the mean over ``num_seeds`` of the weights."""
    table = {key: curve.accuracies[-1] for key, curve in curves().items()}
    params = {key: dict(zip(SPACE, key, strict=True)) for key in table}
    architecture = {key: (param["width"], param["depth"]) for key, param in params.items()}
    best = {shape: max(table[key] for key in table if architecture[key] == shape) for shape in architecture.values()}
    trained_cells = dict(enumerate(fmean(row.accuracies) for row in cells()))
    columns = (f"{len(trained_cells)} cells", f"{len(table)} networks", f"{len(best)} architectures")
    taus: dict[str, dict[str, float]] = {name: {} for name in ("cells", "networks", "architectures")}
    print(f"\n{'Kendall tau of proxies':28}{''.join(f'{column:>18}' for column in columns)}")
    for name in PROXIES:
        seeds = range(1 if name in ("parameters", "flops") else num_seeds)
        of_cells = {
            index: fmean(_of_cell(name, row.params, seed) for seed in seeds) for index, row in enumerate(cells())
        }
        values = {
            key: fmean(_value(name, param["width"], param["depth"], param["dropout"], seed) for seed in seeds)
            for key, param in params.items()
        }
        shapes = {architecture[key]: value for key, value in values.items() if params[key]["dropout"] == 0.0}
        row_taus = (_tau(of_cells, trained_cells), _tau(values, table), _tau(shapes, best))
        for column, tau in zip(taus.values(), row_taus, strict=True):
            column[name] = tau
        print(f"{name:28}{''.join(f'{tau:>18.2f}' for tau in row_taus)}")
    return {
        "proxy_kendall_tau": taus["cells"],
        "proxy_kendall_tau_networks": taus["networks"],
        "proxy_kendall_tau_architectures": taus["architectures"],
    }


def _of_cell(name: str, params: Mapping[str, Any], seed: int) -> float:
    score = proxy(name, workload_of(params), CELL_BATCH, seed)
    return -math.inf if score is None else score


@cache
def _value(name: str, width: int, depth: int, dropout: float, seed: int) -> float:
    score = proxy(name, Candidate({"width": width, "depth": depth, "dropout": dropout}), BATCH, seed)
    assert score is not None
    return score


def _tau(values: Mapping[Any, float], accuracies: Mapping[Any, float]) -> float:
    return round(float(kendalltau([values[key] for key in accuracies], list(accuracies.values())).statistic), 3)


@cache
def digits() -> tuple[Tensor, Tensor]:
    """Images, shape [1797, 64], and labels, in the order of the table."""
    dataset = load_digits()
    order = torch.randperm(len(dataset.target), generator=torch.Generator().manual_seed(0))
    return torch.tensor(dataset.data, dtype=torch.float32)[order] / 16, torch.tensor(dataset.target)[order]
