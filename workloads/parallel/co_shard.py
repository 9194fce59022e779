"""Co-shard (SuperScaler): one rank computes a block's layers in parts, one after another.

Tensor parallelism computes the same parts at the same time on several ranks. Each part is recomputed in the backward
pass, so only the activations of one part exist at a time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from workloads.parallel.forward_state.repeated_passes import RepeatedPasses
from workloads.parallel.forward_state.replaced import ReplacedForward
from workloads.parallel.forward_state.state import ForwardState
from workloads.parallel.tensor_parallel import split_of
from workloads.protocol import Split


def compute_in_parts(blocks: Sequence[nn.Module], num_parts: int, state: ForwardState) -> None:
    """Make the branches of ``blocks`` compute in ``num_parts`` parts, in place; their parameters are not divided.

    Raises ``ValueError`` for blocks without a ``split`` that names branches, and if ``num_parts`` does not divide it.
    """
    if not blocks:
        raise ValueError(
            "co-shard computes blocks in parts, but the workload names no blocks: return them from `blocks`, or use "
            "plans with co_shard=1"
        )
    for number, block in enumerate(blocks):
        split = split_of(block, number)
        if not split.branches:
            raise ValueError(
                f"the split of {type(block).__name__} names no branches, which co-shard needs: name them, or use plans "
                "with co_shard=1"
            )
        if split.most_parts % num_parts:
            raise ValueError(
                f"{split.most_parts} heads cannot be computed in {num_parts} equal parts: choose a divisor of them"
            )
        for name in split.branches:
            branch = block.get_submodule(name)
            columns, rows = _layers_of(name, split)
            for layer, dimension in [(column, 0) for column in columns] + [(row, 1) for row in rows]:
                if (size := branch.get_submodule(layer).weight.shape[dimension]) % num_parts:  # type: ignore[index]
                    raise ValueError(
                        f"{name}.{layer} of size {size} cannot be computed in {num_parts} equal parts: choose a number "
                        "that divides it"
                    )
            branch.forward = _in_parts(branch, columns, rows, num_parts, state)


def _layers_of(branch: str, split: Split) -> tuple[list[str], list[str]]:
    """The branch's columns and rows, by their names inside the branch."""
    start = f"{branch}."
    columns, rows = (
        [name.removeprefix(start) for name in names if name.startswith(start)] for names in (split.columns, split.rows)
    )
    return columns, rows


def _in_parts(
    branch: nn.Module, columns: Sequence[str], rows: Sequence[str], num_parts: int, state: ForwardState
) -> Callable[..., Tensor]:
    one_part = copy.copy(branch)  # shares the layers, but keeps the original ``forward``

    def compute(parameters: dict[str, Tensor], *inputs: Any) -> Tensor:
        output: Tensor = functional_call(one_part, parameters, inputs)
        return output

    def forward(*inputs: Any) -> Tensor:
        # Chunk each parameter once, so that autograd assembles its gradient once and not as a whole tensor per part.
        parts: dict[str, Sequence[Tensor]] = {}
        for name in columns:
            parts |= {f"{name}.{kind}": tensor.chunk(num_parts) for kind, tensor in _parameters(branch, name)}
        for name in rows:
            for kind, tensor in _parameters(branch, name):
                shared = kind == "bias"  # every part adds an equal share of it
                parts[f"{name}.{kind}"] = [tensor / num_parts] * num_parts if shared else tensor.chunk(num_parts, dim=1)
        total: Tensor | None = None
        passes = RepeatedPasses(state, branch)  # all parts begin from one state, as if they were computed at once

        def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
            return passes.context(nullcontext()), passes.context(nullcontext())

        for number in range(num_parts):
            mine = {name: every[number] for name, every in parts.items()}
            output = checkpoint(compute, mine, *inputs, use_reentrant=False, context_fn=contexts)
            total = output if total is None else total + output
        assert total is not None
        return total

    return ReplacedForward(forward, branch.forward)


def _parameters(branch: nn.Module, layer: str) -> list[tuple[str, nn.Parameter]]:
    return list(branch.get_submodule(layer).named_parameters(recurse=False))
