"""Context parallelism: attention over sequences of which each rank has an equal slab (DeepSpeed-Ulysses).

Calls of ``scaled_dot_product_attention`` are intercepted while modules of the model run. All-to-alls give each rank
some heads of the whole sequence, and after the attention its own slab of all heads back. Where the ranks do not divide
the heads, keys and values of all slabs are gathered instead. (torch's ``context_parallel`` knows kernels of CUDA only.)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from workloads.parallel.exchanging.exchange import exchanged
from workloads.parallel.exchanging.gloo import gather, reduce
from workloads.parallel.forward_state.replaced import ReplacedForward


def attend_over_slabs(model: nn.Module, group: dist.ProcessGroup) -> None:
    """Let the attention of ``model`` reach over the slabs of all ranks of ``group``, in place."""
    intercept_attention(model, partial(_attend, group))


def intercept_attention(model: nn.Module, attend: Callable[..., Tensor]) -> None:
    """Call ``attend`` wherever ``model`` calls ``scaled_dot_product_attention``, in place.

    All modules are changed, as any of them may be computed again in a backward pass.
    """
    mode = _Intercepted(attend)
    for module in model.modules():
        module.forward = ReplacedForward(mode.around(module.forward), module.forward, "spatial=1")


class _Intercepted(TorchFunctionMode):
    """Replaces attention within a slab by another function with the same arguments."""

    def __init__(self, attend: Callable[..., Tensor]) -> None:
        super().__init__()
        self._attend, self._is_entered = attend, False

    def around(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """``forward`` in this mode, which is entered once for nested modules."""

        @wraps(forward)
        def run(*args: Any, **kwargs: Any) -> Any:
            if self._is_entered:
                return forward(*args, **kwargs)
            self._is_entered = True
            try:
                with self:
                    return forward(*args, **kwargs)
            finally:
                self._is_entered = False

        return run

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is functional.scaled_dot_product_attention:
            return self._attend(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def _attend(
    group: dist.ProcessGroup,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **others: Any,
) -> Tensor:
    """The attention of this rank's slab of queries to the keys and values of all slabs."""
    if attn_mask is not None:
        raise ValueError(
            "attn_mask cannot be used where ranks divide sequences, as it would be that of one slab: use "
            "is_causal=True or no mask, or plans with spatial=1"
        )
    count = group.size()
    if query.shape[-3] % count == 0 and key.shape[-3] % count == 0:
        query, key, value = (_whole_of_some_heads(tensor, group) for tensor in (query, key, value))
        mixed = functional.scaled_dot_product_attention(query, key, value, None, dropout_p, is_causal, **others)
        parts = mixed.unflatten(-2, (count, -1)).movedim(-3, 0)  # type: ignore[no-untyped-call]
        return exchanged(parts, group).movedim(0, -4).flatten(-4, -3)
    keys, values = (_Gathered.apply(tensor, group) for tensor in (key, value))  # type: ignore[no-untyped-call]
    mask = _causal(query, keys, group) if is_causal else None
    return functional.scaled_dot_product_attention(query, keys, values, mask, dropout_p, **others)


def _whole_of_some_heads(slab: Tensor, group: dist.ProcessGroup) -> Tensor:
    """[…, heads, slab, size] → […, heads / ranks, sequence, size]."""
    parts = slab.unflatten(-3, (group.size(), -1)).movedim(-4, 0)  # type: ignore[no-untyped-call]
    return exchanged(parts, group).movedim(0, -3).flatten(-3, -2)


def _causal(query: Tensor, keys: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Which keys each query of this rank's slab may see."""
    size = query.shape[-2]
    seen = torch.ones(size, keys.shape[-2], dtype=torch.bool, device=query.device)
    return seen.tril(dist.get_rank(group) * size)


class _Gathered(torch.autograd.Function):
    """Slabs of all ranks, in dimension −2; each rank computes with all of them, so their gradients are summed."""

    @staticmethod
    def forward(ctx: Any, slab: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        every = slab.new_empty(group.size() * slab.numel())
        gather(every, slab.contiguous().view(-1), group)
        return every.view(-1, *slab.shape).movedim(0, -3).flatten(-3, -2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        reduce(total, ctx.group)
        return total.chunk(ctx.group.size(), -2)[dist.get_rank(ctx.group)].clone(), None
