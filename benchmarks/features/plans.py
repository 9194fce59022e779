"""Every kind of plan on models that all of them can divide; each is compared with one process."""

from __future__ import annotations

from benchmarks.features.feature import Feature
from estimators.model import Plan

CUTS = (
    Plan(2, 4, pp=2, cut=(3, 5)),
    Plan(4, 2, pp=2, cut=(7, 1), recompute=True, recomputed=(0, 6, 7)),
    Plan(1, 8, pp=4, cut=(1, 2, 2, 3), schedule="gpipe"),
    Plan(1, 4, pp=2, dp_shard=2, cut=(5, 3), recompute=True, recomputed=(1, 5)),
    Plan(2, 4, pp=2, tp=2, cut=(2, 6)),
)
RECOMPUTED = (
    Plan(8, recompute=True, recomputed=(0, 3, 4)),
    Plan(2, 2, dp_shard=2, recompute=True, recomputed=(1, 2, 7), selective=True),
    Plan(4, dp_replicate=2, zero1=True, recompute=True, recomputed=(5,)),
    Plan(4, 2, tp=2, sequence_parallel=True, recompute=True, recomputed=(0, 1)),
)
ORDERS = (
    Plan(2, 4, pp=2, schedule="interleaved"),
    Plan(1, 8, pp=4, schedule="interleaved", recompute=True),
    Plan(2, 4, pp=2, schedule="zb-h1", cut=(5, 3)),
    Plan(1, 8, pp=4, schedule="zb-h1"),
    Plan(2, 4, pp=2, schedule="zbv", cut=(2, 2, 3, 1)),
    Plan(1, 8, pp=4, schedule="zbv"),
    Plan(2, 4, pp=2, schedule="dualpipev"),
    Plan(2, 4, pp=2, tp=2, schedule="zbv"),
    Plan(1, 8, pp=2, tp=2, schedule="interleaved", recompute=True, recomputed=(1, 6)),
)

PLANS: tuple[Feature, ...] = tuple(
    Feature(f"plans, {name}: {model}", f"plans.py:{model}", plans, {"lr": 3e-3})
    for name, plans in {"cuts": CUTS, "recompute": RECOMPUTED, "orders": ORDERS}.items()
    for model in ("Stack", "Tokens")
)
