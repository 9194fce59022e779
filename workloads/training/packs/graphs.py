"""By which ways a loss depends on what trains: the passes that a member makes with others know of one, their output."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor


def nodes_of(values: Iterable[Any]) -> list[Any]:
    """The nodes of autograd's graph that have computed the tensors among ``values``."""
    return [value.grad_fn for value in values if isinstance(value, Tensor) and value.grad_fn is not None]


def leaves_through(loss: Tensor, outputs: Sequence[Any]) -> bool:
    """Whether a gradient of ``loss`` arrives at a leaf, such as a parameter, without passing one of these nodes."""
    seen, waiting = set(outputs), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if hasattr(node, "variable"):  # it sums the gradients of a leaf
            return True
        seen.add(node)
        waiting += [following for following, _ in node.next_functions]
    return False
