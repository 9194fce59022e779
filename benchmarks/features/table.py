"""All features that are checked. Add a line for each feature and, where it is new, its workload."""

from __future__ import annotations

from benchmarks.features.feature import ACCUMULATED, HYBRID, PIPELINE, REPLICAS, SHARDS, TENSOR, ZERO, Feature

EVERY = (ACCUMULATED, REPLICAS, SHARDS, ZERO, PIPELINE, TENSOR, HYBRID)
FEATURES: tuple[Feature, ...] = (Feature("batches by index", "base.py:Base", EVERY),)
