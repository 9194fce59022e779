"""Tensors that losses make on a CPU before they reduce them to one number (ATen/native of torch 2.13)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from estimators.tracing.device.device import Workspace

_ATEN = torch.ops.aten
_LOSSES: Mapping[Any, tuple[int, int, int]] = {
    _ATEN.mse_loss.default: (2, 2, 0),
    _ATEN.smooth_l1_loss.default: (2, 2, 0),
    _ATEN.huber_loss.default: (2, 1, 0),
    _ATEN.soft_margin_loss.default: (2, 1, 0),
    _ATEN.binary_cross_entropy.default: (3, 1, 0),
    _ATEN.binary_cross_entropy_with_logits.default: (4, 1, 1),
}
"""The place of the argument that reduces a loss, and the tensors like its input that it makes then, and always."""
LOSSES = _LOSSES.keys()


def loss(operation: Any, args: Sequence[Any]) -> Workspace:
    """Workspace of one of the ``LOSSES``."""
    place, num_reduced, num_always = _LOSSES[operation]
    is_reduced = len(args) <= place or args[place] != 0
    return ((0, args[0].nbytes * (num_always + is_reduced * num_reduced)),)
