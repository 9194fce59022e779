"""Stands in for what fake tensors cannot do: numbers taken out of tensors, deep copies, and initialisation.

A number that training computes, such as the loss, is not known before it runs. Code that only prints or stores it gets
an ``UnknownNumber``; code that compares it raises, because the comparison could decide what the step does.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from numbers import Number
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor
from torch.utils._pytree import tree_map_only

from estimators.tracing.guards import calls, decides, passing_value, precedes_constant
from estimators.tracing.values.assumptions import HOLDS, ZEROS, calling_frame
from estimators.tracing.values.values import Values

_OPTIMIZERS = str(Path(torch.optim.__file__).parent)
DECIDES_NOTHING = "a number taken by float() decides nothing"
PAIRS = "which pairs a matcher finds does not matter"
_ITEM = torch.ops.aten._local_scalar_dense.default


class UnknownNumber(float):
    """A number that training computes, 1.0 if it is printed. What is computed with it is unknown as well."""

    def __new__(cls, value: float = 1.0) -> UnknownNumber:
        return super().__new__(cls, value)

    __hash__ = float.__hash__


def _computed(name: str) -> Callable[..., Any]:
    def compute(self: UnknownNumber, *others: Any) -> Any:
        """Tensors and arrays compute their own results."""
        return UnknownNumber() if all(isinstance(other, Number) for other in others) else NotImplemented

    return compute


def _compared(name: str) -> Callable[..., Any]:
    def refuse(self: UnknownNumber, *others: Any) -> Any:
        raise DataDependentOutputException(_ITEM)

    return refuse


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    for _side in ("", "r"):
        setattr(UnknownNumber, f"__{_side}{_name}__", _computed(_name))
for _name in ("neg", "pos", "abs", "round"):
    setattr(UnknownNumber, f"__{_name}__", _computed(_name))
for _name in ("lt", "le", "gt", "ge", "eq", "ne", "bool", "int", "trunc", "floor", "ceil"):
    setattr(UnknownNumber, f"__{_name}__", _compared(_name))


@contextlib.contextmanager
def stand_ins(values: Values) -> Iterator[None]:
    """Patch torch while the context lasts."""
    stand_in = _StandIns(values)
    with contextlib.ExitStack() as patches:
        for name, method in (
            ("item", stand_in.item),
            ("tolist", stand_in.to_list),
            ("numpy", stand_in.to_array),
            ("__float__", stand_in.to_float),
            ("__bool__", stand_in.to_bool),
            ("__format__", stand_in.to_text),
            ("__deepcopy__", _copied),
            ("__getitem__", stand_in.get_item),
            ("__setitem__", stand_in.set_item),
        ):
            patches.enter_context(mock.patch.object(FakeTensor, name, _as_method(method)))
        for name in vars(nn.init):
            if name.startswith("_no_grad_"):
                patches.enter_context(mock.patch.object(nn.init, name, _unchanged))
        patches.enter_context(mock.patch.object(torch, "_check_tensor_all_with", stand_in.check))
        patches.enter_context(mock.patch.object(torch, "tensor", stand_in.made_of))
        # What is compiled while the model is built stays as it is; what was compiled at import runs eagerly.
        patches.enter_context(mock.patch.object(torch, "compile", _not_compiled))
        patches.enter_context(mock.patch.object(nn.Module, "compile", return_value=None))
        patches.enter_context(torch.compiler.set_stance("force_eager"))
        yield


class _StandIns:
    """Functions that torch calls instead, with the values that are known."""

    def __init__(self, values: Values) -> None:
        self._values, self._assume = values, values.assumptions.assume
        self._item, self._make = FakeTensor.item, torch.tensor
        self._get_item, self._set_item = FakeTensor.__getitem__, FakeTensor.__setitem__

    def item(self, tensor: FakeTensor) -> Any:
        value = self._values.of(tensor)
        if value is not None:
            with torch._C._DisableTorchDispatch():
                return value.item()
        if not tensor.is_floating_point() or tensor.constant is not None:
            return self._item(tensor)
        caller = sys._getframe(2).f_code.co_filename  # behind the function of ``_as_method``
        # Optimizers scale their updates by such numbers.
        return 1.0 if caller.startswith(_OPTIMIZERS) else UnknownNumber()

    def get_item(self, tensor: FakeTensor, index: Any) -> Any:
        return self._get_item(tensor, _without_lists(index))

    def set_item(self, tensor: FakeTensor, index: Any, value: Any) -> None:
        self._set_item(tensor, _without_lists(index), value)

    def to_list(self, tensor: FakeTensor) -> Any:
        value = self._looked_at(tensor)
        with torch._C._DisableTorchDispatch():
            return value.tolist()

    def to_array(self, tensor: FakeTensor, *, force: bool = False) -> Any:
        if calls(calling_frame(), "linear_sum_assignment") and self._values.of(tensor) is None:
            self._assume(PAIRS)
            return np.zeros(tuple(tensor.shape))
        value = self._looked_at(tensor)
        with torch._C._DisableTorchDispatch():
            return value.numpy()

    def to_float(self, tensor: FakeTensor) -> float:
        if self._values.of(tensor) is None and decides(calling_frame()):
            raise DataDependentOutputException(_ITEM)
        number = self.item(tensor)
        if type(number) is UnknownNumber:  # float() makes a plain number of it, whose comparisons go unseen
            self._assume(DECIDES_NOTHING)
        return float(number)

    def to_text(self, tensor: FakeTensor, style: str) -> str:
        if tensor.ndim:
            return object.__format__(tensor, style)
        is_whole = self._values.of(tensor) is None and not tensor.is_floating_point()
        return format(1 if is_whole else self.item(tensor), style)

    def to_bool(self, tensor: FakeTensor) -> bool:
        value = self._values.of(tensor)
        if value is None and (passing := passing_value(calling_frame())) is not None:
            self._assume(HOLDS)
            return passing
        if value is None and precedes_constant(calling_frame()):
            return True
        return bool(self.item(tensor) if value is None else value.item())

    def check(self, error: type[Exception], condition: Tensor, message: Any = None) -> None:
        known_value = self._values.of(condition)
        if known_value is None:
            self._assume(HOLDS)
        elif not known_value.all():
            raise error(message() if callable(message) else message)

    def made_of(self, data: Any, *args: Any, **kwargs: Any) -> Tensor:
        if isinstance(data, list | tuple):
            data = tree_map_only(FakeTensor, self.to_list, data)
        return self._make(data, *args, **kwargs)

    def _looked_at(self, tensor: FakeTensor) -> Tensor:
        value, assumptions = self._values.of(tensor), self._values.assumptions
        if value is None and assumptions.in_evaluation:
            assumptions.assume(ZEROS)
            with torch._C._DisableTorchDispatch():
                zeros: Any = torch.zeros(tensor.shape, dtype=tensor.dtype)
            zeros.stands_for = tensor  # an array made of it keeps the memory of the tensor alive
            return zeros  # type: ignore[no-any-return]
        if value is None:
            raise DataDependentOutputException(_ITEM)
        return value


def _without_lists(index: Any) -> Any:
    """The index of a tensor, with tensors in place of lists of scalar ones, whose values torch would look at."""
    return tuple(map(_joined, index)) if type(index) is tuple else _joined(index)


def _joined(index: Any) -> Any:
    """The tensor that torch makes of a list of numbers and scalar tensors; any other index as it is."""
    is_list = isinstance(index, list | tuple) and any(isinstance(number, FakeTensor) for number in index)
    if not is_list or any(isinstance(number, Tensor) and number.ndim for number in index):
        return index
    return torch.stack([torch.as_tensor(number, dtype=torch.int64) for number in index])


def _as_method(act: Callable[..., Any]) -> Callable[..., Any]:
    """A function that becomes a method of tensors; a bound method would not get the tensor."""

    def method(tensor: FakeTensor, *args: Any, **kwargs: Any) -> Any:
        return act(tensor, *args, **kwargs)

    return method


def _copied(tensor: FakeTensor, memo: dict[int, Any]) -> Any:
    """``copy.deepcopy`` of a fake tensor: a parameter stays a parameter, and buffers of its own are made."""
    if id(tensor) in memo:
        return memo[id(tensor)]
    with torch.no_grad():
        copy: Any = tensor.detach().clone()
    if isinstance(tensor, nn.Parameter):
        copy = nn.Parameter(copy, tensor.requires_grad)
    else:
        copy.requires_grad_(tensor.requires_grad)
    if tensor.grad is not None:
        copy.grad = _copied(tensor.grad, memo)  # type: ignore[arg-type]
    memo[id(tensor)] = copy
    return copy


def _not_compiled(model: Any = None, **options: Any) -> Any:
    """``torch.compile``, also as a decorator with options."""
    return model if model is not None else lambda function: function


def _unchanged(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return tensor
