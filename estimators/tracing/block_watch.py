"""Watches the blocks of a traced model: marks in the log where each begins its passes, and adds up the bytes that go
into the first block and out of each. It knows modules and tensors, but no plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from estimators.tracing.recorder import Recorder

MOST_LEVELS = 3
"""Levels of objects within objects that are searched for tensors."""
ENTERING = -1
"""Stands for the part before the first block among the numbers of blocks."""


class BlockWatch:
    """Marks passes of blocks in the log of a recorder, and counts what they return in ``crossing``: block → bytes, and
    at ``ENTERING`` those that the first block takes. A block that runs several times counts each time."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._hooks: list[RemovableHandle] = []
        self.crossing: dict[int, int] = {}

    def watch(self, blocks: Sequence[nn.Module]) -> None:
        """Watch these blocks, and no others from now on."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        last = len(blocks) - 1
        for number, block in enumerate(blocks):
            # Before FSDP's own hooks, so that gathering and freeing a block's parameters is logged as part of it.
            begins, ends = partial(self._begins, number), partial(self._ends, number, last)
            self._hooks.append(block.register_forward_pre_hook(begins, prepend=True, with_kwargs=True))
            self._hooks.append(block.register_forward_hook(ends, prepend=True, with_kwargs=True))

    def _begins(self, number: int, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if _in_backward():
            # It is recomputed. A re-entrant checkpoint around the block has not let its output say so before.
            if self._recorder.marked != number:
                self._recorder.mark(number)
            return
        self._recorder.mark(number)
        if number == 0:
            self._cross(ENTERING, tensors_in(args) or tensors_in(kwargs))

    def _ends(
        self, number: int, last: int, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        if _in_backward():
            return
        tensors = tensors_in(output) or tensors_in((args, kwargs))  # a block that returns nothing changes an object
        self._cross(number, tensors)
        if number == last:
            self._recorder.mark(None)
        for tensor in tensors:
            if tensor.requires_grad:
                tensor.register_hook(lambda gradient: self._recorder.mark(number))  # type: ignore[no-untyped-call]
                return

    def _cross(self, number: int, tensors: Sequence[Tensor]) -> None:
        num_bytes = sum(tensor.nbytes for tensor in tensors)
        self.crossing[number] = self.crossing.get(number, 0) + num_bytes


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors in a tree of containers; if there are none, those in dataclasses and other objects in it."""
    leaves = tree_leaves(value)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)] or list(_inside(leaves, MOST_LEVELS))


def _inside(leaves: Sequence[Any], levels: int) -> Iterator[Tensor]:
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            yield leaf
        elif levels and not isinstance(leaf, nn.Module | type) and not callable(leaf):
            yield from _inside(tree_leaves(_attributes(leaf)), levels - 1)


def _attributes(value: Any) -> list[Any]:
    if is_dataclass(value):  # it may have slots
        return [getattr(value, field.name, None) for field in fields(value)]
    return list(getattr(value, "__dict__", {}).values())
