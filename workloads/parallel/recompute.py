"""Recomputes a block in its backward pass: all of it, or all except operations that are slow to compute, cheap to keep.

It wraps one function; the plan decides which blocks are recomputed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

_aten = torch.ops.aten
KEPT = {
    _aten.mm,
    _aten.addmm,
    _aten.bmm,
    _aten.baddbmm,
    _aten._scaled_mm,
    _aten.convolution,
    _aten._flash_attention_forward,
    _aten._efficient_attention_forward,
    _aten._scaled_dot_product_flash_attention,
    _aten._scaled_dot_product_flash_attention_for_cpu,
    _aten._scaled_dot_product_efficient_attention,
    _aten._scaled_dot_product_cudnn_attention,
    _aten._scaled_dot_product_fused_attention_overrideable,
}
"""Operations whose outputs selective recompute keeps: matrix products, convolutions and attention.

These are torch.compile's compute-intensive operations (``compute_intensive_ops`` in
``torch/_functorch/partitioners.py``, without ``upsample_bilinear2d``), plus a batched matrix product and attention on
other devices. torchtitan keeps nearly the same set (``torchtitan/distributed/activation_checkpoint.py``).
"""


def recomputed(forward: Callable[..., Any], *, selective: bool) -> Callable[..., Any]:
    """``forward`` that keeps only its inputs for the backward pass and, if ``selective``, the outputs of ``KEPT``.

    If a kept output is changed in place afterwards, torch raises an error in the backward pass.
    """
    if not selective:
        return partial(checkpoint, forward, use_reentrant=False)
    contexts = partial(create_selective_checkpoint_contexts, _policy)
    return partial(checkpoint, forward, use_reentrant=False, context_fn=contexts)


def _policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    kept = getattr(operation, "_overloadpacket", None) in KEPT and not _drops(operation, args, kwargs)
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def _drops(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the operation draws random numbers: if it were not recomputed, later operations would draw others."""
    for place, argument in enumerate(operation._schema.arguments):
        if argument.name == "dropout_p":
            given = args[place] if place < len(args) else kwargs.get(argument.name, 0.0)
            return bool(given)
    return False
