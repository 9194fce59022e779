"""All features that are checked. Add a line for each feature and, where it is new, its workload."""

from __future__ import annotations

from benchmarks.features.feature import ACCUMULATED, HYBRID, PIPELINE, REPLICAS, SHARDS, TENSOR, ZERO, Feature

EVERY = (ACCUMULATED, REPLICAS, SHARDS, ZERO, PIPELINE, TENSOR, HYBRID)
SEVERAL = (ACCUMULATED, SHARDS, PIPELINE, HYBRID)
WHOLE_BLOCKS = (ACCUMULATED, REPLICAS, SHARDS, ZERO)
"""For models that neither a pipeline nor tensor-parallel ranks divide."""

DATA: tuple[Feature, ...] = (
    Feature("data set", "data.py:OfDataset", EVERY),
    Feature("data set, 2 workers", "data.py:OfDataset", SEVERAL, {"workers": 2}),
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

FEATURES: tuple[Feature, ...] = (Feature("batches by index", "base.py:Base", EVERY), *DATA, *METRICS)
