"""The workloads of the papers, small, and the plans under which each is compared with one process.

GPT and ViT are built in, the others are users' files in ``examples/papers``. Every workload has all kinds of plans that
its model can be divided by (see ``docs/papers.md``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.features.feature import ACCUMULATED, HYBRID, PIPELINE, REPLICAS, SHARDS, TENSOR, ZERO, Feature
from benchmarks.features.running import HALF
from benchmarks.features.table import KEPT, MIXED, RECOMPUTED, SEQUENCES
from estimators.model import Plan

FOLDER = Path(__file__).parents[2] / "examples" / "papers"

SELECTIVE = Plan(2, 2, dp_shard=2, recompute=True, selective=True)
HYBRID_SHARDS = Plan(2, dp_replicate=2, dp_shard=2)
ANY_MODEL = (ACCUMULATED, REPLICAS, SHARDS, ZERO, KEPT, RECOMPUTED, SELECTIVE, HYBRID_SHARDS)
"""Plans that need nothing of a model."""
PARTS = (Plan(4, 2, co_shard=2), Plan(4, dp_shard=2, co_shard=2))
STAGES = (PIPELINE, Plan(1, 8, pp=2, recompute=True), Plan(1, 4, pp=2, dp_replicate=2))
DIVIDED = Plan(4, dp_replicate=2, divided=True)
WITH_EXPERTS = (DIVIDED, Plan(2, dp_replicate=4, divided=True, recompute=True), Plan(4, dp_shard=2), REPLICAS)
SLABS = (
    Plan(4, 2, spatial=2),
    Plan(4, spatial=2, dp_shard=2),
    Plan(4, spatial=2, dp_replicate=2),
    Plan(4, 2, spatial=2, recompute=True),
)


def _workload(name: str, workload: str, plans: tuple[Plan, ...], **params: Any) -> Feature:
    return Feature(name, workload, (*ANY_MODEL, *plans), params, folder=FOLDER, report_every=HALF, gradients=True)


PAPERS: tuple[Feature, ...] = (
    _workload("ViT", "vit_digits", (*STAGES, TENSOR, SEQUENCES, HYBRID, MIXED, *PARTS), width=96, patch=1),
    _workload("GPT", "stdlib_gpt", (*STAGES, TENSOR, SEQUENCES, HYBRID, MIXED, *PARTS), width=96),
    _workload("Swin", "swin.py:SwinDigits", (TENSOR, HYBRID, *PARTS), width=64),
    _workload("SwinIR", "swinir.py:SwinIr", (*STAGES, TENSOR, HYBRID), width=32),
    _workload("Evoformer", "evoformer.py:Contacts", (TENSOR, HYBRID), width=32),
    _workload("3D U-Net", "unet3d_blobs", SLABS, side=16, width=8),
    _workload("CosmoFlow", "cosmoflow.py:Universes", SLABS, side=16, width=8, boxes=20),
    _workload("DLRM", "dlrm.py:Clicks", (DIVIDED,), visits=1200),
    Feature("M6", "m6.py:Captions", WITH_EXPERTS, {"width": 32}, folder=FOLDER, report_every=HALF, gradients=True),
)
