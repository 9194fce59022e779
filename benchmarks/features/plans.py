"""Every kind of plan on models that all of them can divide; each is compared with one process."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

from benchmarks.features.feature import BATCH, Feature
from estimators.model import Plan

CUTS = (
    Plan(2, 4, pp=2, cut=(3, 5)),
    Plan(4, 2, pp=2, cut=(7, 1), recompute=True, recomputed=(0, 6, 7)),
    Plan(1, 8, pp=4, cut=(1, 2, 2, 3), schedule="gpipe"),
    Plan(2, 4, pp=3),
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
GIVEN = (
    Plan(2, 4, pp=2, schedule="0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3; 1F0 1F1 1B1 1B0 1F2 1B2 1F3 1B3"),
    Plan(4, 2, pp=2, schedule="0F0 2F0 0F1 2F1 2B1 2B0 0B0 0B1; 1F0 1F1 1B1 1B0", cut=(2, 4, 2)),
    Plan(4, 2, pp=2, schedule="1F0 1I0 1F1 1W0 1B1; 0F0 0F1 0B0 0B1"),
    Plan(4, 2, pp=2, schedule="0F0 1F0 0F1 1F1 1B0 1B1 0B1 0B0; 2F0 3F0 3I0 2I0 2F1 3F1 3B1 2B1 2W0 3W0"),
    Plan(2, 4, pp=2, tp=2, schedule="0F0,0F1,0F2,0F3,0B3,0B2,0B1,0B0; 1F0,1F1,1F2,1F3,1B3,1B2,1B1,1B0", recompute=True),
)
"""Orders of passes that a user gives: stages out of their order, several on a rank, backward passes in parts."""
DEGREES = (
    Plan(2, 4),
    Plan(4, dp_replicate=2),
    Plan(2, 2, dp_shard=2),
    Plan(4, dp_shard=2, reshard=False),
    Plan(2, dp_shard=2, dp_replicate=2),
    Plan(4, dp_replicate=2, zero1=True),
    Plan(4, 2, tp=2),
    Plan(2, 2, dp_shard=2, tp=2, sequence_parallel=True),
    Plan(4, dp_replicate=2, tp=2, recompute=True),
    Plan(1, 4, pp=2, dp_shard=2),
    Plan(1, 4, pp=2, dp_replicate=2, schedule="gpipe"),
    Plan(2, 4, pp=2, tp=2),
)
ENDS = (
    Plan(4, dp_replicate=2, tp=2, divided=True),
    Plan(4, dp_shard=2, tp=2, sequence_parallel=True, divided=True),
    Plan(1, 4, pp=2, dp_replicate=2, divided=True),
    Plan(1, 4, pp=2, dp_shard=2, cut=(5, 3), recompute=True, recomputed=(1, 5), divided=True),
    Plan(2, 2, pp=2, dp_replicate=2, schedule="gpipe", divided=True),
    Plan(2, dp_shard=2, dp_replicate=2, divided=True),
    Plan(2, 2, dp_shard=2, reshard=False, divided=True),
)
"""Data-parallel ranks divide the embeddings and the head; blocks are in shards, stages or tensor-parallel parts."""
TABLES = (
    Plan(4, dp_replicate=2, divided=True),
    Plan(2, dp_replicate=4, divided=True),
    Plan(1, 4, dp_replicate=2, divided=True, recompute=True),
    Plan(4, dp_shard=2, divided=True),
    Plan(2, 2, dp_shard=2),
)
EXPERTS = (
    Plan(4, dp_replicate=2, divided=True),
    Plan(2, dp_replicate=4, divided=True),
    Plan(4, dp_replicate=2, divided=True, recompute=True),
    Plan(2, dp_replicate=4, divided=True, recompute=True, selective=True),
    Plan(2, dp_shard=4, divided=True),
    Plan(2, dp_shard=2, dp_replicate=2, divided=True, recompute=True),
    Plan(8, recompute=True),
    Plan(4, dp_replicate=2),
    Plan(4, dp_shard=2),
    Plan(2, dp_shard=2, dp_replicate=2, recompute=True),
    Plan(4, dp_replicate=2, zero1=True),
)
CONTEXTS = (
    Plan(8, spatial=2),
    Plan(4, 2, spatial=4, recompute=True),
    Plan(2, 2, spatial=2, dp_shard=2),
    Plan(2, 2, spatial=2, dp_replicate=2),
    Plan(8, spatial=2, recompute=True, selective=True),
    Plan(2, 2, dp_shard=2),
)
SHARES = (
    Plan(5, dp_replicate=2, shares=(5, 3)),
    Plan(3, 2, dp_shard=2, shares=(1, 3)),
    Plan(6, dp_replicate=2, zero1=True, shares=(6, 2)),
    Plan(4, dp_shard=2, dp_replicate=2, shares=(1, 4, 2, 1)),
    Plan(1, 8),
    Plan(3, dp_shard=4, shares=(3, 2, 2, 1), recompute=True, evaluation_batch=2),
)
SHARED_EXPERTS = (
    Plan(5, dp_replicate=2, divided=True, shares=(5, 3)),
    Plan(5, dp_shard=2, divided=True, shares=(5, 3)),
    Plan(7, dp_shard=2, divided=True, shares=(1, 7), recompute=True),
)
SHARED_TABLES = (
    Plan(5, dp_replicate=2, divided=True, shares=(5, 3)),
    Plan(3, 2, dp_shard=2, divided=True, shares=(1, 3)),
)
DIVIDED_SHARES = (
    Plan(3, 2, pp=2, dp_shard=2, shares=(1, 3)),
    Plan(5, tp=2, dp_shard=2, shares=(5, 3), sequence_parallel=True),
    Plan(3, 2, pp=2, dp_replicate=2, shares=(3, 1), schedule="gpipe"),
)
ODD = (
    Plan(4, 2, tp=2, sequence_parallel=True, recompute=True, recomputed=(0, 1)),
    Plan(2, 4, tp=4, sequence_parallel=True),
    Plan(8, tp=4),
    Plan(2, 2, dp_shard=2, tp=2, sequence_parallel=True, recompute=True),
    Plan(4, dp_replicate=2, tp=2, sequence_parallel=True),
    Plan(2, 4, pp=2, tp=2, sequence_parallel=True),
    Plan(2, 2, dp_shard=2),
    Plan(4, dp_replicate=2, zero1=True),
)
"""For sequences and layers of sizes that no number of ranks divides."""
_GROUPS = {"cuts": CUTS, "recompute": RECOMPUTED, "orders": ORDERS, "given orders": GIVEN, "degrees": DEGREES}
_DRAWN = [name for name in _GROUPS if name != "given orders"]
PARTS = ("ends", "tables", "experts", "cuts", "orders", "given orders")
"""Groups in which parts of a model are divided differently: layers, experts, stages of unlike sizes and orders."""


def every_kind() -> tuple[Feature, ...]:
    """Each group of plans for two models: one of equal blocks, one of unlike ones; divided tables; unlike shares."""
    kinds = (
        Feature(f"{name}: {model}", f"plans.py:{model}", plans, {"lr": 3e-3})
        for name, plans in _GROUPS.items()
        for model in ("Stack", "Tokens")
    )
    options = {"lr": 3e-3, "clip_norm": 1.0}
    sparsely = {"optimizer": "SGD", "sparse": True}
    tables = Feature("tables: Ranking", "tables.py:Clicks", TABLES, options, gradients=True)
    sparse = (
        Feature(
            f"tables: {name}",
            "tables.py:Clicks",
            (*TABLES[:4], Plan(1, 4, dp_shard=2, divided=True), Plan(4, 2)),
            {**options, "optimizer": name, "sparse": True},
        )
        for name in ("SparseAdam", "Adagrad", "SGD", "SplitSGD")
    )
    experts = (
        Feature(f"experts: capacity {n}", "experts.py:Captions", EXPERTS, {**options, "capacity": n}, gradients=True)
        for n in (0.75, 2.0)
    )
    ends = Feature("ends: Tokens", "plans.py:Tokens", ENDS, {"lr": 3e-3}, gradients=True)
    contexts = (
        Feature(f"contexts: {heads} heads", "contexts.py:Text", CONTEXTS, {"lr": 3e-3, "heads": heads}, gradients=True)
        for heads in (4, 3)
    )
    shares = (
        Feature("shares: Stack", "plans.py:Stack", SHARES, {"lr": 3e-3}, gradients=True),
        Feature("shares: Tokens", "plans.py:Tokens", (*SHARES, *DIVIDED_SHARES), {"lr": 3e-3}, gradients=True),
        Feature("shares: texts of unlike lengths, masked", "texts.py:Texts", SHARES, {"lr": 3e-3}, gradients=True),
        Feature("shares: buckets of lengths", "data.py:Lengthy", SHARES),
        Feature("shares: experts", "experts.py:Captions", SHARED_EXPERTS, options, gradients=True),
        Feature("shares: tables", "tables.py:Clicks", SHARED_TABLES, options, gradients=True),
        Feature("shares: sparse tables", "tables.py:Clicks", SHARED_TABLES, {**options, **sparsely}),
    )
    odd = (
        Feature("odd sizes", "plans.py:Tokens", ODD, {"lr": 3e-3, "length": 11, "hidden": 171}, gradients=True),
        Feature("odd sizes, few positions", "plans.py:Tokens", ODD, {"lr": 3e-3, "length": 7, "hidden": 5}),
    )
    return (*kinds, ends, tables, *sparse, *experts, *contexts, *shares, *odd)


def drawn_models(seed: int) -> tuple[Feature, ...]:
    """Two models whose blocks and width a seed has drawn, each under eight plans that it has drawn.

    Sizes of models with divided tables and divided sequences, and shares of the batch, are drawn as well.
    """
    draws, models = random.Random(seed), list[Feature]()
    for number in range(2):
        kinds = "".join(draws.choice("an") for _ in range(8))
        params = {"kinds": kinds, "width": draws.choice([32, 48, 80, 96]), "length": draws.randint(5, 20), "lr": 3e-3}
        plans = tuple(draws.sample([plan for name in _DRAWN for plan in _GROUPS[name]], 8))
        models.append(Feature(f"drawn {seed}.{number}: {kinds}", "plans.py:Tokens", plans, params))
    ranking = {"width": 4 * draws.randint(2, 24), "lr": 3e-3}
    heads = draws.choice([2, 3, 4, 6])
    text = {"heads": heads, "width": heads * draws.choice([8, 12, 16]), "length": 4 * draws.randint(3, 12), "lr": 3e-3}
    models.append(Feature(f"drawn {seed}: tables", "tables.py:Clicks", TABLES, ranking, gradients=True))
    models.append(Feature(f"drawn {seed}: contexts", "contexts.py:Text", CONTEXTS, text, gradients=True))
    uneven = tuple(dict.fromkeys(_drawn_shares(draws) for _ in range(6)))
    models.append(Feature(f"drawn {seed}: shares", "texts.py:Texts", uneven, {"lr": 3e-3}, gradients=True))
    return tuple(models)


def _drawn_shares(draws: random.Random) -> Plan:
    """A plan of two to four ranks whose shares of the batch are drawn."""
    spread: dict[str, Any] = draws.choice(
        [{"dp_replicate": 2}, {"dp_shard": 3}, {"dp_shard": 4}, {"dp_replicate": 3, "zero1": True}, {"dp_shard": 2}]
    )
    num_ranks = max(value for value in spread.values() if value is not True)
    num_micro_batches = 2 if num_ranks < 4 and draws.random() < 0.5 else 1
    ends = sorted(draws.sample(range(1, BATCH // num_micro_batches), num_ranks - 1))
    shares = tuple(end - begin for begin, end in pairwise([0, *ends, BATCH // num_micro_batches]))
    recompute = draws.random() < 0.3
    return Plan(max(shares), num_micro_batches, shares=shares, recompute=recompute, **spread)
