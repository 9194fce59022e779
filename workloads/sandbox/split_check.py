"""Finds blocks whose ``Split`` says that ranks can divide their layers, but that would train another curve so.

A rank has consecutive rows of the weights of every layer in ``columns``. A fused layer that holds all queries first,
then all keys, gives such a rank queries without their keys, and nobody would notice. So a block is run whole, and then
with each part of its layers in turn. The results of a layer in ``rows`` must add up to those of the whole layer, which
each part goes on with.
"""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map_only

from scamp.workload.seeds import seed_everything
from workloads.protocol import Split, Workload
from workloads.sandbox.small_model import are_close, small_model
from workloads.training.data.batch_transform import step_batch
from workloads.training.updates.phases import phases_of

NUM_SAMPLES = 2
MOST_PRODUCTS = 2e10
"""Parameters of a block × positions; of longer sequences only the beginning is run."""

_Call = tuple[str, int]  # name of a layer, and how many of its calls in the block came before


def difference_of_parts(workload: Workload, count: int) -> str:
    """How ``count`` parts of a block's layers together compute something else than the whole; empty if they do not.

    It is empty for a very large model, too. Raises any error of a model that cannot be run alone.
    """
    model = small_model(workload)
    if model is None:
        return ""
    blocks = [block for block in workload.blocks(model) if isinstance(getattr(block, "split", None), Split)]
    for block, args, kwargs in _calls(workload, model, blocks):
        args, kwargs = _beginning(block, args, kwargs)
        if name := _without_sum(block, args, kwargs):
            return (
                f"ranks cannot divide the layers of {type(block).__name__} as it says: {name} is whole on every rank, "
                "but works on divided features between a layer of `columns` and one of `rows`, so each rank has only "
                "a part of its gradient: name its layer in `summed` of the Split, or in a tp_plan as "
                "replicated_with_grad_allreduce"
            )
        if where := _different_layer(block, args, kwargs, count):
            return (
                f"ranks cannot divide the layers of {type(block).__name__}, although its attribute `split` says so: "
                f"{count} parts together give another {where} than the whole. A part has consecutive rows of the "
                "weights of each layer in `columns`: let a fused layer hold q, k and v of the first head, then those "
                "of the second, as unflatten(-1, (-1, 3, head_size)) reads them; between columns and rows normalise "
                "no features; or leave `split` out"
            )
    return ""


def _calls(
    workload: Workload, model: nn.Module, blocks: list[nn.Module]
) -> list[tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]:
    """Each block with the arguments of its first call. Nothing runs after all blocks have been called."""
    calls: dict[nn.Module, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def note(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.setdefault(block, (_copied(args), _copied(kwargs)))
        if len(calls) == len(hooks):
            raise _AllFound

    hooks = [block.register_forward_pre_hook(note, with_kwargs=True) for block in dict.fromkeys(blocks)]
    batch = step_batch(workload, torch.arange(NUM_SAMPLES) % workload.num_train)
    seed_everything(0)
    with torch.no_grad(), suppress(_AllFound):
        for loss in [phase.loss for phase in phases_of(workload)] or [workload.loss]:
            loss(model, batch)
    for hook in hooks:
        hook.remove()
    return [(block, *arguments) for block, arguments in calls.items()]


class _AllFound(BaseException):
    """Not an ``Exception``, because the user's code might catch that and continue."""


def _beginning(
    block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, or the first positions of their sequences where all of them would take long."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    if not tensors or tensors[0].ndim < 3:
        return args, kwargs
    length = tensors[0].shape[1]
    num_parameters = sum(parameter.numel() for parameter in block.parameters())
    num = max(16, int(MOST_PRODUCTS / max(1, num_parameters * NUM_SAMPLES)))
    if length <= num:
        return args, kwargs

    def shorter(tensor: Tensor) -> Tensor:
        for dim, size in enumerate(tensor.shape):
            tensor = tensor.narrow(dim, 0, num) if size == length else tensor
        return tensor

    return tree_map_only(Tensor, shorter, args), tree_map_only(Tensor, shorter, kwargs)


def _without_sum(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Name of a parameter that computes what a layer of ``rows`` takes, but is in no layer that the split names."""
    split: Split = block.split  # type: ignore[assignment]
    divided_ids = {id(parameter) for name in split.names for parameter in block.get_submodule(name).parameters()}
    used: set[int] = set()

    def column(name: str, layer: Any, number: int, x: Tensor) -> Tensor:
        return functional.linear(x, layer.weight, layer.bias).detach()

    def row(name: str, layer: Any, number: int, x: Tensor) -> Tensor:
        used.update(_leaves(x.grad_fn))
        return functional.linear(x, layer.weight, layer.bias).detach()

    with torch.enable_grad(), _replaced(block, split, column, row):
        block(*_copied(args), **_copied(kwargs))
    between = used - divided_ids
    return next((name for name, parameter in block.named_parameters() if id(parameter) in between), "")


def _leaves(node: Any) -> set[int]:
    """Ids of the tensors from which autograd has computed the output of ``node``."""
    seen, waiting, leaves = set(), [node], set()
    while waiting:
        function = waiting.pop()
        if function is None or function in seen:
            continue
        seen.add(function)
        if hasattr(function, "variable"):
            leaves.add(id(function.variable))
        waiting += [after for after, _ in function.next_functions]
    return leaves


def _different_layer(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], count: int) -> str:
    """Name of what the parts of ``block`` compute otherwise than the whole, empty if there is nothing."""
    split: Split = block.split  # type: ignore[assignment]
    undivided: dict[_Call, Tensor] = {}
    sums: defaultdict[_Call, list[Tensor]] = defaultdict(list)

    def note(name: str, layer: Any, number: int, x: Tensor) -> Tensor:
        output = functional.linear(x, layer.weight, layer.bias)
        undivided[name, number] = output.clone()
        return output

    def run(column: Callable[..., Tensor] | None, row: Callable[..., Tensor]) -> Any:
        seed_everything(0)
        with torch.no_grad(), _replaced(block, split, column, row):
            return block(*_copied(args), **_copied(kwargs))

    output = run(None, note)
    for index in range(count):

        def column(name: str, layer: Any, number: int, x: Tensor, index: int = index) -> Tensor:
            bias = None if layer.bias is None else layer.bias.chunk(count)[index]
            return functional.linear(x, layer.weight.chunk(count)[index], bias)

        def row(name: str, layer: Any, number: int, x: Tensor, index: int = index) -> Tensor:
            sums[name, number].append(functional.linear(x, layer.weight.chunk(count, 1)[index]))
            return undivided[name, number].clone()

        computed = run(column, row)
        pairs = zip(tree_leaves(computed), tree_leaves(output), strict=True)
        if not all(are_close(*pair) for pair in pairs if isinstance(pair[0], Tensor)):
            return "output"
    for (name, number), parts in sums.items():
        bias = getattr(block.get_submodule(name), "bias", None)
        total = torch.stack(parts).sum(0)
        if not are_close(total if bias is None else total + bias, undivided[name, number]):
            return f"output of {name}"
    return ""


@contextmanager
def _replaced(
    block: nn.Module, split: Split, column: Callable[..., Tensor] | None, row: Callable[..., Tensor]
) -> Iterator[None]:
    """Let other functions compute the layers that ``split`` names; they also get its name, itself and its call."""
    num_calls: Counter[str] = Counter()

    def calling(name: str, layer: nn.Module, function: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
        def run(x: Tensor) -> Tensor:
            num_calls[name] += 1
            return function(name, layer, num_calls[name] - 1, x)

        return run

    named_layers = [(name, column) for name in split.columns] + [(name, row) for name in split.rows]
    layers = [(name, block.get_submodule(name), function) for name, function in named_layers if function is not None]
    for name, layer, function in layers:
        layer.forward = calling(name, layer, function)
    try:
        yield
    finally:
        for _, layer, _ in layers:
            del layer.forward


def _copied(value: Any) -> Any:
    """A copy, also of objects that a block may change, such as a cache of keys and values."""
    try:
        return copy.deepcopy(value)
    except Exception:  # an object that cannot be copied
        return tree_map_only(Tensor, lambda tensor: tensor.clone(), value)
