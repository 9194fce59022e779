"""Finds out whether the blocks of a model are equal, and removes some of them. It knows modules but does not trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

_PLAIN = (bool, int, float, str, bytes, type(None))


def are_equal(blocks: Sequence[nn.Module]) -> bool:
    """Whether all blocks have the same modules, parameters, buffers and settings, apart from their position."""
    return bool(blocks) and all(_signature(b, i) == _signature(blocks[0], 0) for i, b in enumerate(blocks))


def container_of(model: nn.Module, blocks: Sequence[nn.Module]) -> nn.Module | None:
    """The list or sequence in ``model`` that holds all blocks, one after another; None if there is none."""
    for module in model.modules():
        children = list(module.children())
        if isinstance(module, nn.ModuleList | nn.Sequential) and blocks and blocks[0] in children:
            first = children.index(blocks[0])
            return module if children[first : first + len(blocks)] == list(blocks) else None
    return None


def shorten(model: nn.Module, blocks: Sequence[nn.Module], num_blocks: int) -> list[nn.Module]:
    """Leave only the first ``num_blocks`` in the model, and return them; the others lose their parameters and buffers.

    ``container_of`` must find the blocks.
    """
    container = container_of(model, blocks)
    assert container is not None
    left_out = set(blocks[num_blocks:])
    _set_children(container, [child for child in container.children() if child not in left_out])
    for block in left_out:
        for module in block.modules():
            for tensors in (module._parameters, module._buffers):
                tensors.update(dict.fromkeys(tensors))
    return list(blocks[:num_blocks])


def lengthen(
    model: nn.Module, blocks: Sequence[nn.Module], left_out: Sequence[nn.Module]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Put back what ``shorten`` left out, with parameters and buffers like those of the second of ``blocks``.

    Yields pairs of parameters: the one that was copied, and the new one. Nothing happens until it is iterated.
    """
    container = container_of(model, blocks)
    assert container is not None
    children = list(container.children())
    end = children.index(blocks[-1]) + 1
    _set_children(container, [*children[:end], *left_out, *children[end:]])
    for block in left_out:
        for source, target in zip(blocks[1].modules(), block.modules(), strict=True):
            for name, parameter in source._parameters.items():
                if parameter is not None:
                    new = nn.Parameter(torch.empty_like(parameter), parameter.requires_grad)
                    target._parameters[name] = new
                    yield parameter, new
            for name, buffer in source._buffers.items():
                target._buffers[name] = None if buffer is None else torch.empty_like(buffer)


def _set_children(container: nn.Module, children: Sequence[nn.Module]) -> None:
    container._modules = {str(position): child for position, child in enumerate(children)}


def _signature(block: nn.Module, position: int) -> list[Any]:
    """Everything that distinguishes two blocks; settings that are the block's own position count as equal."""
    signature: list[Any] = []
    for name, module in block.named_modules():
        settings = {
            key: "position" if value == position and type(value) is int and _is_position(key) else value
            for key, value in vars(module).items()
            if _plain(value)
        }
        tensors = [
            (key, None if tensor is None else (tuple(tensor.shape), tensor.dtype, tensor.requires_grad))
            for key, tensor in [*module._parameters.items(), *module._buffers.items()]
        ]
        signature.append((name, type(module), settings, tensors))
    return signature


def _is_position(name: str) -> bool:
    return "layer" in name or "block" in name or "idx" in name or "index" in name


def _plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, tuple | list) and all(map(_plain, value)))
