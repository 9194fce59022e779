"""Recomputes a block in its backward pass: all of it, or all except operations that are slow to compute, cheap to keep.

It wraps one block; the plan decides which blocks are recomputed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from workloads.parallel.arguments import Arguments
from workloads.parallel.forward_state.repeated_passes import RepeatedPasses
from workloads.parallel.forward_state.replaced import ReplacedForward
from workloads.parallel.forward_state.state import ForwardState

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


def recomputed(block: nn.Module, state: ForwardState, *, selective: bool) -> Callable[..., Any]:
    """The block's ``forward``, but it keeps only its inputs for the backward pass and, if ``selective``, the outputs of
    ``KEPT``. What it changes in ``state``, and in objects that it is given, is changed once. Raises ``WorkloadError``
    for a block that changes a tensor that it is given.

    If a kept output is changed in place afterwards, torch raises an error in the backward pass.
    """
    forward = block.forward

    def call(*args: Any, **kwargs: Any) -> Any:
        passes, arguments = RepeatedPasses(state, block), Arguments.of(args, kwargs)
        has_run = False

        def compute(*args: Any, **kwargs: Any) -> Any:
            nonlocal has_run
            if has_run:
                with arguments.restored():
                    return forward(*args, **kwargs)
            has_run = True
            result = forward(*args, **kwargs)
            if torch.is_grad_enabled():
                arguments.expect_unchanged_tensors(block)
            return result

        def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
            first, again = _selective_contexts() if selective else (nullcontext(), nullcontext())
            return passes.context(first), passes.context(again)

        return checkpoint(compute, *args, use_reentrant=False, context_fn=contexts, **kwargs)

    return ReplacedForward(call, forward)


def _selective_contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return create_selective_checkpoint_contexts(_policy)  # type: ignore[no-untyped-call,no-any-return]


def _policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    is_kept = getattr(operation, "_overloadpacket", None) in KEPT and not _drops(operation, args, kwargs)
    return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE


def _drops(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the operation draws random numbers: if it were not recomputed, later operations would draw others."""
    for place, argument in enumerate(operation._schema.arguments):
        if argument.name == "dropout_p":
            rate = args[place] if place < len(args) else kwargs.get(argument.name, 0.0)
            return bool(rate)
    return False
