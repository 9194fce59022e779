"""Counts the bytes of autograd's graph besides the data of tensors: its nodes with the objects of tensors that they
keep, and the objects of modules and parameters.

They lie in host memory. A model of many small operations takes more memory for them than for its tensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import nn

NODE_BYTES = 1200
"""Bytes of one node with all that it keeps. Of twelve loops of small operations the mean was 1,110, between 850 and
1,820 (torch 2.13, CPython 3.11)."""
_MODULE_BYTES, _PARAMETER_BYTES = 2200, 560  # a module's dictionaries; a parameter, its storage and its place
_sequence_nr = torch._C._autograd._get_sequence_nr
_graph_task = torch._C._current_graph_task_id


def module_bytes(model: nn.Module, blocks: Sequence[nn.Module]) -> Counter[int]:
    """Bytes of the objects of modules and parameters: of each block, and (at -1) of what belongs to no block."""
    num_bytes = Counter({number: _module_bytes(block) for number, block in enumerate(blocks)})
    num_bytes[-1] = _module_bytes(model) - num_bytes.total()
    return num_bytes


def _module_bytes(module: nn.Module) -> int:
    num_parameters = sum(parameter is not None for part in module.modules() for parameter in part._parameters.values())
    return _MODULE_BYTES * len(list(module.modules())) + _PARAMETER_BYTES * num_parameters


class Objects:
    """The objects that are alive. Call ``note`` before each operation.

    Nodes run backward in the order in which they were made, the last one first. So when a forward pass follows a
    backward pass, what is left of the graph are the nodes before the first one that ran.
    """

    def __init__(self) -> None:
        self.begin({})

    def begin(self, held: Mapping[int, int] | None = None) -> None:
        """Forget all nodes. ``held`` are bytes of objects that stay alive, by block (None: the same as before)."""
        if held is not None:
            self._held = Counter(held)
        self._alive: list[tuple[int, int]] = []  # (sequence number, block) of nodes
        self._most = Counter[int]()
        self._last = _sequence_nr()
        self._reached: int | None = None  # first node that has run backward; None in a forward pass

    @property
    def most(self) -> dict[int, int]:
        """Bytes of the objects of each block (-1: of what belongs to no block) when they were the most."""
        if len(self._alive) > self._most.total():
            self._most = Counter(block for _, block in self._alive)
        return dict(self._held + Counter({block: NODE_BYTES * num for block, num in self._most.items()}))

    def note(self, block: int) -> None:
        """Note the nodes that were made since the last operation; ``block`` is the one that runs now."""
        if _graph_task() != -1:
            if self._reached is None:
                _ = self.most
            node = torch._C._current_autograd_node()
            number = node._sequence_nr() if node is not None else self._last
            self._reached = number if self._reached is None else min(number, self._reached)
            return
        if self._reached is not None:
            self._drop(self._reached)
        now = _sequence_nr()
        self._alive += [(number, block) for number in range(self._last, now)]
        self._last = now

    def _drop(self, reached: int) -> None:
        """Forget the nodes that have run backward."""
        self._reached = None
        while self._alive and self._alive[-1][0] >= reached:
            self._alive.pop()
        self._last = _sequence_nr()
