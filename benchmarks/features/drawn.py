"""Combinations of ways to give data and to measure, and plans for them, drawn by a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from benchmarks.features.feature import BATCH, Feature
from estimators.model import Plan


def drawn(seed: int, num: int) -> Iterator[Feature]:
    """Draw ``num`` combinations of ways to give data, each with two plans of up to four ranks."""
    draws = random.Random(seed)
    for number in range(num):
        kind = draws.choice(["Drawn", "DrawnInOrder", "DrawnByIndex"])
        is_stream = kind == "Drawn" and draws.random() < 0.5
        params = {
            "source": "stream" if is_stream else "samples",
            "noisy": draws.random() < 0.5,
            "augments": draws.random() < 0.5,
            "workers": draws.randint(0, 1 if is_stream else 3) if kind != "DrawnByIndex" else 0,
            "epoch": draws.randint(BATCH, 70),
        }
        plans = (_drawn_plan(draws), _drawn_plan(draws))
        yield Feature(f"drawn {seed}.{number}", f"drawn.py:{kind}", plans, params)


def _drawn_plan(draws: random.Random) -> Plan:
    while True:
        degrees: dict[str, Any] = {axis: draws.choice([1, 1, 2]) for axis in ("dp_replicate", "dp_shard", "tp", "pp")}
        flags: dict[str, Any] = {flag: draws.random() < 0.3 for flag in ("zero1", "recompute")}
        share = BATCH // (degrees["dp_replicate"] * degrees["dp_shard"])
        num_micro_batches = draws.choice([num for num in (1, 2, 4, 8) if num <= share])
        evaluation = draws.randint(0, share // num_micro_batches - 1)
        try:
            plan = Plan(share // num_micro_batches, num_micro_batches, evaluation, **degrees, **flags)
        except ValueError:  # the axes exclude each other
            continue
        if plan.world_size <= 4:
            return plan
