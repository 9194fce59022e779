"""All features that are checked. Add a line for each feature and, where it is new, its workload."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.features.feature import ACCUMULATED, BATCH, HYBRID, PIPELINE, REPLICAS, SHARDS, TENSOR, ZERO, Feature
from estimators.model import Plan

EXAMPLES = Path(__file__).parents[2] / "examples"

EVERY = (ACCUMULATED, REPLICAS, SHARDS, ZERO, PIPELINE, TENSOR, HYBRID)
SEVERAL = (ACCUMULATED, SHARDS, PIPELINE, HYBRID)
WHOLE_BLOCKS = (ACCUMULATED, REPLICAS, SHARDS, ZERO)
"""For models that neither a pipeline nor tensor-parallel ranks divide."""

DATA: tuple[Feature, ...] = (
    Feature("data set", "data.py:OfDataset", EVERY),
    Feature("data set, 2 workers", "data.py:OfDataset", SEVERAL, {"workers": 2}),
    Feature("sets that are divided at random", "data.py:Divided", SEVERAL),
    Feature("random data set", "data.py:Noisy", SEVERAL),
    Feature("random data set, 2 workers", "data.py:Noisy", SEVERAL, {"workers": 2}),
    Feature("augmentation", "data.py:Augmented", SEVERAL),
    Feature("augmentation, 2 workers", "data.py:Augmented", EVERY, {"workers": 2}),
    Feature("iterable data set", "data.py:Streamed", SEVERAL),
    Feature("iterable data set, 1 worker", "data.py:Streamed", SEVERAL, {"workers": 1}),
    Feature("weighted order", "data.py:Weighted", SEVERAL, {"workers": 2}),
    Feature("weighted order of batches", "data.py:WeightedByIndex", SEVERAL),
    Feature("buckets of lengths", "data.py:Lengthy", WHOLE_BLOCKS),
    Feature("buckets of lengths, 2 workers", "data.py:Lengthy", WHOLE_BLOCKS, {"workers": 2}),
)

METRICS: tuple[Feature, ...] = (
    Feature("metrics of the whole set", "whole_set.py:WholeSet", EVERY),
    Feature("torchmetrics", "whole_set.py:OfTorchmetrics", SEVERAL, {"workers": 1}),
)

NARROW = 1e-2
"""Tolerance of bf16 and fp16."""
RECOMPUTED = Plan(4, 2, recompute=True)
MIXED = Plan(2, 2, dp_shard=2, tp=2, sequence_parallel=True, recompute=True)
SEQUENCES = Plan(4, 2, tp=2, sequence_parallel=True)
KEPT = Plan(4, dp_shard=2, reshard=False)
SPLIT = (*EVERY, RECOMPUTED, MIXED)
SHARDED = (SHARDS, KEPT, Plan(2, dp_replicate=2, dp_shard=2), MIXED)
_SIZES = {"depth": 3, "width": 96, "heads": 4, "length": 16}
_SGD: dict[str, Any] = {"optimizer": "SGD", "lr": 0.3}


def _update(name: str, plans: tuple[Plan, ...], tolerance: float = 1e-5, **params: Any) -> Feature:
    return Feature(name, "sequences.py:Sequences", plans, {**_SIZES, **params}, tolerance)


_TOGETHER: dict[str, Any] = {"clip_norm": 0.1, "ema_decay": 0.7, "schedule": "cosine"}

UPDATES: tuple[Feature, ...] = (
    _update("clipped gradients", SPLIT, clip_norm=0.1, **_SGD),
    _update("clipped gradients, frozen parts", SEVERAL, clip_norm=0.1, frozen=["norm", "digits"], **_SGD),
    _update("schedule of steps", SEVERAL, schedule="steps", **_SGD),
    _update("warm-up and cosine", SEVERAL, schedule="cosine", lr=2e-3),
    _update("one cycle", SEVERAL, schedule="one_cycle", lr=2e-3),
    _update("plateau", SEVERAL, schedule="plateau", lr=2e-3),
    _update("EMA", (*EVERY, KEPT), ema_decay=0.7, lr=2e-3),
    _update("SWA", SEVERAL, swa_start=2, lr=2e-3),
    _update("EMA, clipped, cosine", SPLIT, ema_decay=0.7, clip_norm=0.1, schedule="cosine", lr=2e-3),
    _update("list of optimizers", tuple(plan for plan in SPLIT if plan != ZERO), optimizers=2, lr=2e-3),
    _update("list of optimizers, clipped, EMA, cosine", SEVERAL, optimizers=2, lr=2e-3, **_TOGETHER),
    _update("bf16", SPLIT, NARROW, precision="bf16", lr=2e-3),
    _update("bf16 parameters", (*SPLIT, KEPT), NARROW, precision="bf16-params", lr=2e-3),
    _update(
        "bf16 parameters, reduced in bf16", SHARDED, NARROW, precision="bf16-params", reduce_precision="bf16", lr=2e-3
    ),
    _update("bf16, clipped, EMA", SEVERAL, NARROW, precision="bf16", clip_norm=0.1, ema_decay=0.7, lr=2e-3),
    _update("deep model, EMA, clipped", SEVERAL, ema_decay=0.7, clip_norm=0.1, depth=8, width=64, length=32, lr=2e-3),
    _update("fp16", SPLIT, NARROW, precision="fp16", lr=2e-3),
)

_PHASES: dict[str, dict[str, Any]] = {
    "two optimizers": {"width": 256},
    "two optimizers, EMA, clipped": {"width": 256, "ema_decay": 0.7, "clip_norm": 0.1},
}
PHASES: tuple[Feature, ...] = tuple(
    Feature(name, "gan.py:DigitsGan", (ACCUMULATED, REPLICAS, SHARDS, KEPT), params, folder=EXAMPLES)
    for name, params in _PHASES.items()
)

_REDUCTIONS: list[tuple[int, str, dict[str, Any], tuple[Plan, ...]]] = [
    (2, "", {}, (Plan(2, 2, dp_replicate=2, adasum=True), Plan(4, dp_replicate=2, adasum=True, recompute=True))),
    (
        2,
        ", EMA, clipped, cosine",
        {"ema_decay": 0.7, "clip_norm": 0.1, "schedule": "cosine"},
        (Plan(1, 4, dp_replicate=2, adasum=True), Plan(4, dp_replicate=2, adasum=True, co_shard=2)),
    ),
    (4, "", {}, (Plan(2, dp_replicate=4, adasum=True), Plan(1, 2, dp_replicate=4, adasum=True))),
]
REDUCTIONS: tuple[Feature, ...] = tuple(
    replace(
        _update(f"Adasum, {num} replicas{words}", plans, reduce="adasum", adasum_replicas=num, lr=2e-3, **params),
        reference=Plan(BATCH // num, dp_replicate=num, adasum=True),
    )
    for num, words, params, plans in _REDUCTIONS
)
"""Adasum's curve depends on the number of replicas, so each is compared with as many that do not divide their share."""

SCALED: tuple[Feature, ...] = (
    _update("AdaScale", (*EVERY, KEPT), scale_lr="adascale", base_batch=5, **_SGD),
    _update(
        "AdaScale, clipped, EMA, cosine",
        SEVERAL,
        scale_lr="adascale",
        base_batch=5,
        clip_norm=0.1,
        ema_decay=0.7,
        schedule="cosine",
        **_SGD,
    ),
)
"""They train fewer steps than there are reports."""

UNLIKE = Plan(5, dp_shard=2, shares=(5, 3))
CONTEXTS = (Plan(8, spatial=2), Plan(4, 2, spatial=4, recompute=True), Plan(2, 2, spatial=2, dp_shard=2), SHARDS)
_ANSWERS = {**_SIZES, "lr": 2e-3}

COUNTED: tuple[Feature, ...] = (
    Feature("tokens that count", "counted.py:Answers", (*SPLIT, KEPT, UNLIKE), _ANSWERS, gradients=True),
    Feature(
        "tokens that count, clipped, EMA, cosine",
        "counted.py:Answers",
        (*SEVERAL, UNLIKE),
        {**_ANSWERS, "clip_norm": 0.1, "ema_decay": 0.7, "schedule": "cosine"},
    ),
    Feature("tokens that count, fp16", "counted.py:Answers", SEVERAL, {**_ANSWERS, "precision": "fp16"}, NARROW),
    Feature("tokens that count, divided sequences", "counted.py:Contexts", CONTEXTS, {"lr": 3e-3}, gradients=True),
    Feature("weights of classes", "counted.py:Weighted", EVERY),
)
"""Losses that are divided by what counts, not by samples."""

NAMED_PLANS = (TENSOR, HYBRID, Plan(2, 2, dp_shard=2, tp=2), Plan(4, 2, tp=2, recompute=True), SHARDS)


def _named(name: str, workload: str, *more: Plan) -> Feature:
    return Feature(f"tp_plan: {name}", f"named.py:{workload}", (*NAMED_PLANS, *more), {"lr": 1e-3})


NAMED: tuple[Feature, ...] = (
    _named("Llama", "Llama"),
    _named("Llama with LoRA", "LlamaWithLora"),
    _named("Phi-3, whole between layers", "Phi"),
    _named("Qwen3, experts", "Mixture"),
    _named("DeepSeek-V3, latent keys and experts", "Deepseek"),
    _named("by hand", "ByHand", SEQUENCES, MIXED),
)
"""Models that tensor-parallel ranks divide by names and styles of layers."""

FEATURES: tuple[Feature, ...] = (
    Feature("batches by index", "base.py:Base", EVERY),
    *DATA,
    *METRICS,
    *UPDATES,
    *PHASES,
    *REDUCTIONS,
    *SCALED,
    *COUNTED,
    *NAMED,
)
