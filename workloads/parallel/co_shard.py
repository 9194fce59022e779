"""Co-shard: the layers of a block computed in parts on one rank, one after another, each again in the backward pass.

What tensor parallelism does side by side; so the activations of one part alone are there at a time (SuperScaler).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from workloads.parallel.tensor_parallel import split_of
from workloads.protocol import Split


def compute_in_parts(blocks: Sequence[nn.Module], num_parts: int) -> None:
    """Change the branches of ``blocks`` in place; their parameters stay as they are, and whole.

    Raises ``ValueError`` for blocks that have no ``split`` with branches, or one that does not go into so many parts.
    """
    if not blocks:
        raise ValueError("co-shard computes blocks in parts, and the workload names no blocks")
    for block in blocks:
        split = split_of(block)
        if not split.branches:
            raise ValueError(f"the split of {type(block).__name__} names no branches: co-shard needs them")
        if split.most_parts % num_parts:
            raise ValueError(
                f"{split.most_parts} heads cannot be computed in {num_parts} equal parts: choose a divisor"
            )
        for name in split.branches:
            branch = block.get_submodule(name)
            columns, rows = _layers_of(name, split)
            for layer, dimension in [(one, 0) for one in columns] + [(one, 1) for one in rows]:
                if (size := branch.get_submodule(layer).weight.shape[dimension]) % num_parts:  # type: ignore[index]
                    raise ValueError(f"{name}.{layer} of size {size} cannot be computed in {num_parts} equal parts")
            # An attribute of the instance, not a wrapper module: names in checkpoints do not depend on the plan.
            branch.forward = _in_parts(branch, columns, rows, num_parts)


def _layers_of(branch: str, split: Split) -> tuple[list[str], list[str]]:
    """Its columns and rows, by their names in it."""
    start = f"{branch}."
    columns, rows = (
        [name.removeprefix(start) for name in names if name.startswith(start)] for names in (split.columns, split.rows)
    )
    return columns, rows


def _in_parts(branch: nn.Module, columns: Sequence[str], rows: Sequence[str], num_parts: int) -> Callable[..., Tensor]:
    one_part = copy.copy(branch)  # with the same layers; its ``forward`` is not replaced

    def compute(parameters: dict[str, Tensor], *inputs: Any) -> Tensor:
        output: Tensor = functional_call(one_part, parameters, inputs)
        return output

    def forward(*inputs: Any) -> Tensor:
        # In one go: the gradients of all parts are put together once, and not each into a whole of its own.
        parts: dict[str, Sequence[Tensor]] = {}
        for name in columns:
            parts |= {f"{name}.{kind}": one.chunk(num_parts) for kind, one in _parameters(branch, name)}
        for name in rows:
            for kind, one in _parameters(branch, name):
                is_bias = kind == "bias"  # of which every part adds its share
                parts[f"{name}.{kind}"] = [one / num_parts] * num_parts if is_bias else one.chunk(num_parts, dim=1)
        total: Tensor | None = None
        for number in range(num_parts):
            mine = {name: every[number] for name, every in parts.items()}
            output = checkpoint(compute, mine, *inputs, use_reentrant=False)
            total = output if total is None else total + output
        assert total is not None
        return total

    return forward


def _parameters(branch: nn.Module, layer: str) -> list[tuple[str, nn.Parameter]]:
    return list(branch.get_submodule(layer).named_parameters(recurse=False))
