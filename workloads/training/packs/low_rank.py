"""Low-rank adapters of all members at one site in a few operations, instead of a few for each member.

An adapter is recognised by what it computes, not by its class: a site that trains two matrices, of an input by a rank
and of the rank by an output, and that returns the frozen layer's output plus a multiple of the input times both, with
any numbers in them. Before the matrices there may be dropout. That a training step is the same is shown by the
comparisons of the pack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, grouped_mm

ALIGNED = 8
"""Ranks are filled up to a multiple of it: torch's grouped products take rows of a multiple of 16 bytes."""
_ROWS, _TOLERANCE = 5, 1e-4


@dataclass(frozen=True, slots=True)
class LowRank:
    """An adapter: ``scale`` × (input ``down`` ``up``), where ``down`` has the shape [in, rank] and ``up`` [rank, out].

    The parameters may be stored as the transposes of these: ``are_transposed`` says so of each, in that order.
    ``dropout`` is the rate (0 to 1) of units of the input that are dropped before ``down``.
    """

    down: nn.Parameter
    up: nn.Parameter
    are_transposed: tuple[bool, bool]
    scale: float
    dropout: float
    base: nn.Module

    @property
    def rank(self) -> int:
        """The number of columns of ``down``."""
        return self.down.shape[0 if self.are_transposed[0] else 1]

    def matrices(self) -> tuple[Tensor, Tensor]:
        """``down`` as [in, rank] and ``up`` as [rank, out]."""
        down, up = self.down.detach(), self.up.detach()
        return (down.t() if self.are_transposed[0] else down), (up.t() if self.are_transposed[1] else up)


def low_rank_of(module: nn.Module, base: nn.Module | None) -> LowRank | None:
    """The adapter that the module of a site is, around its frozen part ``base``; None if it is something else."""
    trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    sizes = getattr(base, "in_features", 0), getattr(base, "out_features", 0)
    if not isinstance(base, nn.Module) or len(trained) != 2 or sizes[0] * sizes[1] == 0:
        return None
    if any(parameter.ndim != 2 for parameter in trained.values()) or any(size % ALIGNED for size in sizes):
        return None
    for first, second in (tuple(trained), tuple(reversed(trained))):
        for transposed in ((True, True), (False, False), (True, False), (False, True)):
            down = trained[first].t() if transposed[0] else trained[first]
            up = trained[second].t() if transposed[1] else trained[second]
            if (down.shape[0], up.shape[1]) != sizes or down.shape[1] != up.shape[0]:
                continue
            scale = _scale_of(module, base, (first, second), (down, up), transposed)
            if scale is not None:
                rates = {each.p * each.training for each in module.modules() if isinstance(each, nn.Dropout)}
                if len(rates) <= 1:
                    return LowRank(trained[first], trained[second], transposed, scale, max(rates, default=0.0), base)
    return None


def _scale_of(
    module: nn.Module,
    base: nn.Module,
    names: tuple[str, str],
    like: tuple[Tensor, Tensor],
    transposed: tuple[bool, bool],
) -> float | None:
    """The number by which the product of both matrices is multiplied, with any numbers in them; None if it is none."""
    generator = torch.Generator().manual_seed(0)
    scales, modes = [], {each: each.training for each in module.modules()}
    kept = torch.get_rng_state()
    for each in modes:
        each.training = False  # a module's own ``eval`` may do more
    try:
        with torch.no_grad():
            for _ in range(2):
                down, up, x = (
                    torch.randn(shape, generator=generator).to(like[0])
                    for shape in (like[0].shape, like[1].shape, (_ROWS, like[0].shape[0]))
                )
                drawn = {name: (m.t() if t else m) for name, m, t in zip(names, (down, up), transposed, strict=True)}
                added = torch.func.functional_call(module, drawn, (x,)) - base(x)
                product = x @ down @ up
                scale = float((added.double() * product.double()).sum() / product.double().square().sum())
                if (added - scale * product).abs().max() > _TOLERANCE * added.abs().max():
                    return None
                scales.append(scale)
    except Exception:  # it takes something else than a tensor, or returns something else
        return None
    finally:
        torch.set_rng_state(kept)
        for each, training in modes.items():
            each.training = training
    return scales[0] if abs(scales[0] - scales[1]) <= _TOLERANCE * abs(scales[0]) else None


def adapted(x: Tensor, parts: Sequence[Tensor], adapters: Sequence[LowRank | None], states: list[Tensor]) -> Tensor:
    """The sum that the adapters add to the frozen layer's output, each for its own rows of ``x``; ``parts`` are these.

    None adds nothing. ``states`` are those of torch's generator for each member, and are moved on by what its dropout
    draws.
    """
    rows = x.reshape(-1, x.shape[-1])
    if any(adapter is not None and adapter.dropout for adapter in adapters):
        dropped = []
        for place, (part, adapter) in enumerate(zip(parts, adapters, strict=True)):
            torch.set_rng_state(states[place])
            rate = adapter.dropout if adapter is not None else 0.0
            dropped.append(dropout(part, rate, training=True) if rate else part)
            states[place] = torch.get_rng_state()
        rows = torch.cat(dropped).reshape(-1, x.shape[-1])
    sizes = [part.numel() // part.shape[-1] for part in parts]
    flat = [parameter for adapter in adapters if adapter is not None for parameter in (adapter.down, adapter.up)]
    added: Tensor = _Grouped.apply(rows, sizes, adapters, *flat)  # type: ignore[no-untyped-call]
    return added.view(*x.shape[:-1], added.shape[-1])


class _Grouped(torch.autograd.Function):
    """The products of the rows of each member with its two matrices, and their gradients."""

    @staticmethod
    def forward(
        context: Any, x: Tensor, sizes: Sequence[int], adapters: Sequence[LowRank | None], *_: Tensor
    ) -> Tensor:
        counts = torch.tensor(sizes, device=x.device)
        ends = counts.cumsum(0, dtype=torch.int32)
        scales = [adapter.scale if adapter is not None else 0.0 for adapter in adapters]
        of_rows = torch.tensor(scales, dtype=x.dtype, device=x.device).repeat_interleave(counts).unsqueeze(1)
        present = [(place, adapter.rank, *adapter.matrices()) for place, adapter in enumerate(adapters) if adapter]
        rank = -(-max(width for _, width, _, _ in present) // ALIGNED) * ALIGNED
        down = x.new_zeros(len(adapters), x.shape[1], rank)
        up = x.new_zeros(len(adapters), rank, present[0][3].shape[1])
        torch._foreach_copy_([down[place, :, :width] for place, width, _, _ in present], [each[2] for each in present])
        torch._foreach_copy_([up[place, :width] for place, width, _, _ in present], [each[3] for each in present])
        hidden = grouped_mm(x, down, offs=ends) * of_rows
        context.save_for_backward(x, hidden, down, up, ends, of_rows)
        context.adapters = adapters
        return grouped_mm(hidden, up, offs=ends)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Any, ...]:
        x, hidden, down, up, ends, of_rows = context.saved_tensors
        gradient = gradients[0].contiguous()
        of_hidden = grouped_mm(gradient, up.transpose(1, 2), offs=ends) * of_rows
        of_x = grouped_mm(of_hidden, down.transpose(1, 2), offs=ends) if context.needs_input_grad[0] else None
        of_down = grouped_mm(x.t(), of_hidden, offs=ends)
        of_up = grouped_mm(hidden.t(), gradient, offs=ends)
        flat: list[Tensor] = []
        for place, adapter in enumerate(context.adapters):
            if adapter is None:
                continue
            own_down, own_up = of_down[place, :, : adapter.rank], of_up[place, : adapter.rank]
            flat.append((own_down.t() if adapter.are_transposed[0] else own_down).contiguous())
            flat.append((own_up.t() if adapter.are_transposed[1] else own_up).contiguous())
        return of_x, None, None, *flat
