"""Finds parts of a model that ranks cannot keep in step: memory with two owners, and parameters outside of modules.

On one rank two tensors may share memory, and a list may hold a parameter. When a model is divided, each parameter gets
memory of its own, and modules alone get the new parameters: the rest would train to something else. New parameters get
the attributes of the old ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy


def why_one_rank(model: nn.Module) -> str:
    """Why several ranks could not keep the model in step; empty if they can.

    They can if parameters have their own memory and no hooks, and modules alone hold them. Call it before the model is
    divided.
    """
    return next(chain(_in_two_places(model), _outside_of_modules(model), _with_hooks(model)), "")


def _with_hooks(model: nn.Module) -> Iterator[str]:
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            yield (
                f"{name} has a hook (register_hook), which the parameters of several ranks would not have: change its "
                "gradient in a hook of the optimizer (register_step_pre_hook), or use plans of one rank"
            )


def parameter_attributes(model: nn.Module) -> dict[str, dict[str, object]]:
    """Attributes that users have set on parameters, by the parameters' names: optimizers may choose groups by it."""
    return {name: dict(attributes) for name, parameter in model.named_parameters() if (attributes := vars(parameter))}


def set_parameter_attributes(model: nn.Module, attributes: dict[str, dict[str, object]]) -> None:
    """Set attributes of parameters that have been made anew; those of other stages are left out."""
    for name, parameter in model.named_parameters():
        for attribute, value in attributes.get(name, {}).items():
            setattr(parameter, attribute, value)


def _in_two_places(model: nn.Module) -> Iterator[str]:
    by_address: dict[int, list[tuple[str, int, int]]] = {}  # by address of the memory
    for name, parameter in (*model.named_parameters(), *model.named_buffers()):
        if parameter.layout is not torch.strided or is_lazy(parameter) or not parameter.numel():
            continue
        start = int(parameter.storage_offset())
        end = start + 1 + sum((size - 1) * step for size, step in zip(parameter.shape, parameter.stride(), strict=True))
        places = by_address.setdefault(parameter.untyped_storage()._cdata, [])
        is_buffer = not isinstance(parameter, nn.Parameter)
        for other, low, high in places:
            if start < high and low < end:
                yield (
                    f"{other} and {name} are two tensors in the same memory, which they would not be on several ranks: "
                    "assign the one parameter to both modules, or use plans of one rank"
                )
        if not is_buffer:
            places.append((name, start, end))


def _outside_of_modules(model: nn.Module) -> Iterator[str]:
    registered = {id(module) for module in model.modules()}
    for name, module in model.named_modules():
        if isinstance(module, nn.RNNBase):  # it renews its own list
            continue
        for attribute, value in module.__dict__.items():
            if attribute in _REGISTERS:
                continue
            for leaf in _tensors_in(value):
                place = f"{name}.{attribute}" if name else attribute
                if isinstance(leaf, nn.Parameter):
                    yield (
                        f"{place} holds parameters outside of modules, so several ranks would use old ones: take them "
                        "from their modules in forward, or put them into an nn.ParameterList, or use plans of one rank"
                    )
                if isinstance(leaf, nn.Module) and id(leaf) not in registered and any(True for _ in leaf.parameters()):
                    yield (
                        f"{place} holds layers that are not part of the model, so they are neither trained nor sent to "
                        "other ranks: put them into an nn.ModuleList, or use plans of one rank"
                    )


_REGISTERS = frozenset(nn.Module().__dict__)


def _tensors_in(value: object) -> Iterator[object]:
    """Tensors and modules that an attribute is itself, or holds in containers, which may contain themselves."""
    waiting, seen = [value], set[int]()
    while waiting:
        part = waiting.pop()
        if isinstance(part, Tensor | nn.Module):
            yield part
        elif isinstance(part, list | tuple | dict | set | deque) and id(part) not in seen:
            seen.add(id(part))
            waiting += part.values() if isinstance(part, dict) else part
