"""Processor time of a step of an embedding table of a million rows, by how rows are updated, as ratios of one run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median

import torch
from torch import Tensor, nn

from scamp import SplitSGD

ROWS, WIDTH, SAMPLES, PER_SAMPLE, LR = 10**6, 64, 2048, 20, 0.01


def seconds_ratios(num_steps: int = 9) -> Mapping[str, float]:
    """Median processor time of a step divided by that of torch's SGD in fp32 with as dense gradients, taken in turn.

    ``fused`` subtracts gradients of bags from the rows in the backward pass, a few samples at a time, without a tensor
    of all gradients; it is compared with sparse ones.
    """
    steps: dict[str, Callable[[Tensor], object]] = {
        "sparse": _stepping(sparse=True, split=False),
        "split, sparse": _stepping(sparse=True, split=True),
        "fused": partial(_fused, _table(sparse=False).weight),
        "dense": _stepping(sparse=False, split=False),
        "split, dense": _stepping(sparse=False, split=True),
    }
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(num_steps):
        bags = torch.randint(ROWS, (SAMPLES, PER_SAMPLE))
        for name, step in steps.items():
            began = time.process_time()
            step(bags)
            seconds[name].append(time.process_time() - began)
    medians = {name: median(times[1:]) for name, times in seconds.items()}
    return {name: medians[name] / medians["dense" if "dense" in name else "sparse"] for name in steps}


def _table(*, sparse: bool) -> nn.EmbeddingBag:
    return nn.EmbeddingBag(ROWS, WIDTH, mode="sum", sparse=sparse)


def _stepping(*, sparse: bool, split: bool) -> Callable[[Tensor], object]:
    table = _table(sparse=sparse)
    kind = SplitSGD if split else torch.optim.SGD
    optimizer = kind((table.bfloat16() if split else table).parameters(), lr=LR)

    def step(bags: Tensor) -> None:
        table(bags).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@torch.no_grad()
def _fused(weight: Tensor, bags: Tensor) -> None:
    gradients = torch.ones_like(nn.functional.embedding_bag(bags, weight, mode="sum"))
    for rows, gradient in zip(bags.split(128), gradients.split(128), strict=True):
        weight.index_add_(0, rows.flatten(), gradient.repeat_interleave(rows.shape[1], 0), alpha=-LR)
