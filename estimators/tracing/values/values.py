"""Follows the values of tensors through the operations of a trace, so that code may look at them.

Fake tensors have shapes and no values. But many models look at a few values that do not depend on training: numbers
counted by ``torch.arange``, masks made of them, the labels of a batch. Small tensors that are computed from such values
are computed for real as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from estimators.tracing.values.assumptions import ALL_CHOSEN, DRAWN, EVEN, FINITE, FIRST_SAMPLES, Assumptions
from estimators.tracing.values.effects import (
    CHOOSES,
    effect_of,
    if_nothing_is_found,
    keeps_uniform,
    keeps_zeros,
    tensors_written,
)
from estimators.tracing.values.known import KnownTensors, KnownValue, bytes_of

_MOST_BYTES = 2**24  # of a twin: computing larger ones would take longer than the trace
_MOST_BATCH_BYTES = 2**24
MOST_FIXED = 10_000
"""Draws of a trace that have a given number; more may be of a loop that waits for another one."""
_MOST_DRAWN = 16  # random numbers that a decision may depend on; dropout draws more


class Values:
    """The known values of one fake mode's tensors.

    A model's own choices, such as experts, are taken to be spread evenly if ``is_even``, and otherwise to be all the
    same. Every look at a value adds what it rests on to the ``assumptions``. Numbers between 0 and 1 that decide
    something are drawn at random, or are ``drawn`` if that is not None.
    """

    def __init__(self, *, is_even: bool = True, drawn: float | None = None) -> None:
        self.is_even, self.drawn = is_even, drawn
        self._num_drawn = 0
        self.assumptions = Assumptions()
        self._known = KnownTensors()

    def know_batch(self, fake: Any, real: Any) -> None:
        """The values of a batch's samples."""
        for fake_leaf, value in zip(tree_leaves(fake), tree_leaves(real), strict=True):
            if type(fake_leaf) is FakeTensor and value.nbytes <= _MOST_BATCH_BYTES:
                self._known.know(fake_leaf, value, frozenset([FIRST_SAMPLES]))

    def follow(self, operation: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
        """Note what is known of the output of an operation that has just run."""
        match effect_of(operation):
            case "lift":
                self._lift(args[0], out)
            case "write" if self._known:
                self._follow_write(operation, args, kwargs)
            case "compare" if type(out) is FakeTensor and (empty := if_nothing_is_found(operation, args)) is not None:
                with torch._C._DisableTorchDispatch():
                    self._known.know(out, torch.tensor(empty), frozenset([FINITE]), is_uniform=True)
            case "random":
                self._draw(operation, args, kwargs, out)
            case "compute" if self._known:
                self._compute(operation, args, kwargs, out)
            case "make" | "choose" | "compare":
                self._compute(operation, args, kwargs, out)

    def _lift(self, real: Any, out: Any) -> None:
        if type(real) is Tensor and type(out) is FakeTensor and real.nbytes <= _MOST_BYTES:
            self._known.know(out, real, frozenset())
            out.constant = None  # torch would look up copies of it in a table, and then not change their types

    def _draw(self, operation: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
        """Draw a few numbers for real: their values are random anyway.

        Draws are noted, except those of dropout, which everybody expects.
        """
        if "dropout" not in operation.__name__ and "attention" not in operation.__name__:
            self.assumptions.draw()
        is_small = type(out) is FakeTensor and out.numel() <= _MOST_DRAWN
        if is_small and self._known.values_of(args, kwargs) is not None:
            self._known.know(out, self._drawn(self._run(operation, args, kwargs), operation), frozenset([DRAWN]))

    def _drawn(self, numbers: Tensor, operation: Any) -> Tensor:
        """The numbers that an operation of a step has drawn, or those that a trace is made for in their place."""
        name = operation._overloadpacket.__name__
        is_unit = name.startswith(("rand", "uniform", "bernoulli")) and not name.startswith(("randn", "randint"))
        if self.drawn is None or not is_unit or not self.assumptions.in_step or self._num_drawn > MOST_FIXED:
            return numbers
        self._num_drawn += 1
        with torch._C._DisableTorchDispatch():
            return numbers.fill_(round(self.drawn) if name.startswith("bernoulli") else self.drawn)

    def _compute(self, operation: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
        """Compute small outputs for real if all inputs are known; choices of unknown numbers are assumed."""
        effect, is_one = effect_of(operation), type(out) is FakeTensor
        if not is_one and not isinstance(out, tuple | list):
            return
        if is_one and bytes_of(out) > _MOST_BYTES and effect != "compare":
            return
        inputs = self._known.values_of(args, kwargs)
        if inputs is None:
            if effect == "choose":
                self._choose(operation, args, kwargs, out)
        elif any(value.is_uniform for value in inputs):
            if is_one and all(value.is_uniform or value.twin.numel() == 1 for value in inputs):
                self._follow_uniform(operation, args, kwargs, out, inputs)
        elif inputs or effect == "make":
            real, because = self._run(operation, args, kwargs), _because(inputs)
            for fake_leaf, value in zip(tree_leaves(out), tree_leaves(real), strict=True):
                if type(fake_leaf) is FakeTensor and bytes_of(fake_leaf) <= _MOST_BYTES:
                    self._known.know(fake_leaf, value, because)

    def decide(
        self, operation: Any, args: Sequence[Any], kwargs: dict[str, Any], fake: Callable[[Tensor], FakeTensor]
    ) -> Any:
        """The result of an operation that depends on values, if they are known; otherwise NotImplemented.

        ``fake`` makes a fake tensor like a real one.
        """
        inputs = self._known.values_of(args, kwargs)
        if inputs is None or any(value.is_uniform for value in inputs):
            if operation is torch.ops.aten.masked_select.default:
                return args[0].new_empty(self._num_chosen(args[1], args[0].shape))
            if operation is torch.ops.aten.nonzero.default:
                return args[0].new_empty((self._num_chosen(args[0], args[0].shape), args[0].ndim), dtype=torch.int64)
        if not inputs:
            return NotImplemented
        if any(value.is_uniform for value in inputs) and operation is not torch.ops.aten._local_scalar_dense.default:
            return NotImplemented
        because = _because(inputs)
        self.assumptions.assume(*because)
        real = self._run(operation, args, kwargs)

        def faked(value: Tensor) -> FakeTensor:
            fake_value = fake(value)
            self._known.know(fake_value, value, because)
            return fake_value

        return tree_map_only(Tensor, faked, real)

    def of(self, fake: Tensor) -> Tensor | None:
        """The value of a tensor that code wants to look at, None if it is not known; its assumptions are made."""
        known_value = self._known.of(fake)
        if known_value is None:
            return None
        self.assumptions.assume(*known_value.because)
        with torch._C._DisableTorchDispatch():
            return known_value.value(fake).expand(fake.shape).detach()

    def are_equal(self, first: Tensor, second: Tensor) -> bool:
        """Whether both tensors are known, and have the same values; no assumption is made."""
        known_first, known_second = self._known.of(first), self._known.of(second)
        if known_first is None or known_second is None:
            return False
        with torch._C._DisableTorchDispatch():
            return torch.equal(known_first.value(first), known_second.value(second))

    def positions(self, indices: Sequence[Tensor | None], fake: Callable[[Tensor], FakeTensor]) -> list[Any]:
        """The indices of an indexing with its masks replaced by the positions that they choose.

        A mask that is not known chooses every position, which is the most that it can choose.
        """
        chosen: list[Any] = []
        for index in indices:
            if index is None or index.dtype not in (torch.bool, torch.uint8):
                chosen.append(index)
                continue
            known_index = self._known.of(index)
            if known_index is None or known_index.is_uniform:
                num = self._num_chosen(index, index.shape)
                chosen += [index.new_empty(num, dtype=torch.int64) for _ in range(index.ndim)]
                continue
            self.assumptions.assume(*known_index.because)
            with torch._C._DisableTorchDispatch():
                columns = [column.clone() for column in known_index.value(index).nonzero().unbind(1)]  # in own memory
            for column in columns:
                chosen.append(fake(column))
                self._known.know(chosen[-1], column, known_index.because)
        return chosen

    def _num_chosen(self, mask: Tensor, shape: Sequence[int]) -> int:
        """How many elements of a tensor of this ``shape`` a mask chooses; all of them if the mask is not known."""
        if (known_mask := self._known.of(mask)) is None:
            self.assumptions.assume(ALL_CHOSEN)
            return math.prod(shape)
        self.assumptions.assume(*known_mask.because)
        with torch._C._DisableTorchDispatch():
            return int(known_mask.value(mask).expand(tuple(shape)).count_nonzero().item())

    def _choose(self, operation: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
        """Give values to indices that the model chooses by numbers that nobody knows: experts, queries, classes."""
        indices = out if type(out) is FakeTensor else out[1]
        dim = kwargs.get("dim", args[CHOOSES[operation]] if len(args) > CHOOSES[operation] else None)
        if dim is None:
            dim = -1
            if args[0].ndim and operation in (torch.ops.aten.argmax.default, torch.ops.aten.argmin.default):
                return  # over all elements
        if not args[0].ndim or bytes_of(indices) > _MOST_BYTES:
            return
        num_choices = args[0].shape[dim]
        with torch._C._DisableTorchDispatch():
            if indices.ndim < args[0].ndim:
                chosen = torch.arange(indices.numel()).reshape(indices.shape)
            else:
                width = indices.shape[dim]
                moved = list(indices.shape)
                moved.append(moved.pop(dim))
                chosen = torch.arange(indices.numel()).reshape(moved)
                chosen = (chosen if self.is_even else chosen % width).movedim(-1, dim)
            if not self.is_even and indices.ndim < args[0].ndim:
                chosen = torch.zeros_like(chosen)
            chosen = (chosen % num_choices).to(indices.dtype)
        self._known.know(indices, chosen, frozenset([EVEN]))

    def _follow_uniform(
        self, operation: Any, args: Sequence[Any], kwargs: dict[str, Any], out: FakeTensor, inputs: Sequence[KnownValue]
    ) -> None:
        with torch._C._DisableTorchDispatch():
            is_zero = keeps_zeros(operation) and not any(value.twin.any() for value in inputs)
        if keeps_uniform(operation) or is_zero:
            real = self._run(operation, args, kwargs)
            because = _because(inputs)
            with torch._C._DisableTorchDispatch():
                self._known.know(out, real.reshape(-1)[0].clone(), because, is_uniform=True)

    def _follow_write(self, operation: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """An operation that writes: into twins as well if all that it reads is known; otherwise they are lost."""
        inputs, changed = self._known.values_of(args, kwargs), tensors_written(operation, args, kwargs)
        is_random = torch.Tag.nondeterministic_seeded in operation.tags
        if (
            is_random
            and self.assumptions.in_step
            and "dropout" not in operation.__name__
            and len(changed) == 1
            and args[0] is changed[0]
        ):
            self._draw_into(operation, args, kwargs)
            return
        if inputs and changed and not is_random and not any(value.is_uniform for value in inputs):
            self._run(operation, args, kwargs)
            for leaf in changed:
                self._known.write(leaf, _because(inputs))
            return
        for leaf in changed:
            self._known.lose(leaf)

    def _draw_into(self, operation: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Draw a few numbers for real into a tensor that is all of its memory; others are lost."""
        target, *others = args
        is_whole = target.numel() <= _MOST_DRAWN and target.untyped_storage().nbytes() == bytes_of(target)
        if not is_whole or self._known.values_of(others, kwargs) is None:
            self._known.lose(target)
            return
        with torch._C._DisableTorchDispatch():
            real = torch.empty(target.shape, dtype=target.dtype)
        numbers = self._drawn(self._run(operation, (real, *others), kwargs), operation)
        self._known.know(target, numbers, frozenset([DRAWN]))

    def _run(self, operation: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        def real(leaf: Any) -> Any:
            known_value = self._known.of(leaf) if type(leaf) is FakeTensor else None
            return known_value.value(leaf) if known_value is not None else leaf

        with torch._C._DisableTorchDispatch(), torch.no_grad():
            return operation(*tree_map(real, args), **tree_map(real, kwargs))


def _because(inputs: Sequence[KnownValue]) -> frozenset[str]:
    """The assumptions that all of these rest on."""
    return frozenset().union(*(value.because for value in inputs))
