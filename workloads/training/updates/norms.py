"""The norm of all gradients of a model, however its parameters are divided over the ranks of a gang."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from workloads.parallel.exchanging.gloo import reduce
from workloads.parallel.forward_state.snapshot import local_part, real_numbers


def local_gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    """This rank's parts of the gradients, each with the placements of its parameter; those of sparse ones coalesced.

    Complex numbers are pairs of real ones.
    """
    return [gradient for _, gradient in _gradients(parameters) if gradient is not None]


def global_norm(parameters: Iterable[Tensor], stages: dist.ProcessGroup | None) -> Tensor:
    """The 2-norm of the gradients of all parameters of the model, a scalar that is equal on every rank.

    Each number counts once, whichever ranks hold it: the squares of shards are summed over the ranks that hold
    different ones, and at last over the pipeline's ``stages``. All ranks call it after gradients have been reduced.
    """

    def squares(pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        gradients = [gradient for _, gradient in pairs]
        is_double = any(gradient.dtype == torch.float64 for gradient in gradients)
        norms = torch._foreach_norm(gradients, 2, torch.float64 if is_double else torch.float32)
        return torch.stack(list(norms)).square().sum(0, keepdim=True).float()

    return global_sums(parameters, stages, squares, 1)[0].sqrt()


def global_sums(
    parameters: Iterable[Tensor],
    stages: dist.ProcessGroup | None,
    sums_of: Callable[[Sequence[tuple[Tensor, Tensor]]], Tensor],
    num: int,
) -> Tensor:
    """Sums over all numbers of all gradients of the model, shape [num], equal on every rank.

    ``sums_of`` gives those of this rank's parts of some gradients, each with its parameter.
    """
    device: torch.device | None = None
    parts: dict[tuple[dist.ProcessGroup, ...], list[tuple[Tensor, Tensor]]] = {}
    for parameter, gradient in _gradients(parameters):
        device = device or parameter.device
        # Ranks with the same shards have the same entries, even for parameters that no rank has used.
        group_parts = parts.setdefault(_groups_of(parameter), [])
        if gradient is not None:
            group_parts.append((parameter, gradient))
    total = torch.zeros(num, device=device)
    for groups, pairs in parts.items():
        mine = sums_of(pairs) if pairs else torch.zeros(num, device=device)
        for group in groups:
            reduce(mine, group)
        total = total + mine
    if stages is not None:
        reduce(total, stages)
    return total


def clip(parameters: Iterable[Tensor], norm: Tensor, limit: float) -> None:
    """Scale the gradients, whose norm is ``norm``, down to the norm ``limit``, in place; smaller ones stay.

    The formula is that of ``torch.nn.utils.clip_grad_norm_``.
    """
    if gradients := local_gradients(parameters):
        torch._foreach_mul_(gradients, (limit / (norm + 1e-6)).clamp(max=1.0))


def _gradients(parameters: Iterable[Tensor]) -> Iterable[tuple[Tensor, Tensor | None]]:
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None:
            yield parameter, None
            continue
        if gradient.is_complex() and gradient.is_conj():  # torch only notes that it is one
            parameter.grad = gradient = gradient.resolve_conj()
        if isinstance(gradient, DTensor):
            assert isinstance(parameter, DTensor)
            if gradient.placements != parameter.placements:  # sums that ranks still have to add up
                gradient = gradient.redistribute(placements=parameter.placements)
                parameter.grad = gradient
        local = local_part(gradient)
        if local.is_sparse:
            local = local if local.is_coalesced() else local.coalesce()
            if isinstance(gradient, DTensor):
                gradient._local_tensor = local
            else:
                parameter.grad = local
            local = local._values()
        yield parameter, real_numbers(local)


def _groups_of(parameter: Tensor) -> tuple[dist.ProcessGroup, ...]:
    """The process groups whose ranks hold different shards of the parameter."""
    if not isinstance(parameter, DTensor):
        return ()
    mesh = parameter.device_mesh
    return tuple(
        mesh.get_group(dim) for dim, placement in enumerate(parameter.placements) if not placement.is_replicate()
    )
