"""Compares the gradients of a first step, which Adam's first moments in a checkpoint hold."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from workloads.training.checkpoints.safe_reader import SafeReader

MOMENT = "/exp_avg"
FLOOR = 1e-3
"""Gradients of a parameter that are smaller than this share of the largest one are compared with that share: those of
the bias of a key, for example, are rounding alone."""


def first_gradients(checkpoint: Path) -> dict[str, Tensor]:
    """Gradients by the name of their parameter, up to a factor; none without Adam."""
    reader = SafeReader(checkpoint)
    entries = {
        key: torch.empty(entry.size, dtype=entry.properties.dtype)
        for key, entry in reader.read_metadata().state_dict_metadata.items()
        if key.endswith(MOMENT) and isinstance(entry, TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own deprecated calls
        load(entries, storage_reader=reader, no_dist=True)
    return {key.removesuffix(MOMENT): tensor for key, tensor in entries.items()}


def largest_gradient_difference(gradients: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> float:
    """Largest difference of an entry, relative to the largest entry of its parameter; infinite for other parameters."""
    if gradients.keys() != reference.keys():
        return math.inf
    sizes = {name: float(gradient.abs().max()) for name, gradient in reference.items()}
    least = FLOOR * max(sizes.values(), default=0.0)
    differences = [
        float((gradients[name] - reference[name]).abs().max()) / max(sizes[name], least) for name in reference
    ]
    return max(differences, default=0.0)
