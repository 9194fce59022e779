"""Cached outcomes of operations are equal to those that fake tensors compute."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from estimators.model import Layout
from estimators.tracing import outcomes
from estimators.tracing.device import CPU
from estimators.tracing.outcomes import Outcomes
from estimators.tracing.tracer import trace
from workloads.loading import load_workload
from workloads.sandbox.recipe import recipe_of

aten = torch.ops.aten


def both(operation: Any, arguments: Callable[[], tuple[Any, ...]], **kwargs: Any) -> tuple[Any, Any, tuple[Any, ...]]:
    """The result of torch, the one remembered for new arguments, and these arguments."""
    fake = FakeTensorMode()
    outcomes = Outcomes(fake, CPU)
    with fake:
        first, second = arguments(), arguments()
        out = operation(*first, **kwargs)
        key = outcomes.key(operation, first, kwargs)
        outcomes.learn(key, operation, first, kwargs, out)
        again = outcomes.key(operation, second, kwargs)
        assert key is not None and again == key
        outcome = outcomes.cached(again)
        return out, outcomes.new_outputs(outcome, second) if outcome else None, second


def look(tensor: Tensor) -> tuple[Any, ...]:
    storage = tensor.untyped_storage()
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device, storage.nbytes()


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        (aten.mm.default, lambda: (torch.empty(3, 4), torch.empty(4, 5))),
        (aten.add.Tensor, lambda: (torch.empty(3, 4).t(), torch.empty(4, 3, dtype=torch.bfloat16))),
        (aten.native_layer_norm.default, lambda: (torch.empty(2, 8), [8], torch.empty(8), None, 1e-5)),
        (
            aten.convolution.default,
            lambda: (torch.empty(2, 3, 8, 8), torch.empty(6, 3, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
        ),
        (aten._foreach_add.Scalar, lambda: ([torch.empty(3), torch.empty(4)], 1.0)),
    ],
    ids=lambda value: getattr(value, "_opname", ""),
)
def test_new_tensors_are_like_those_of_torch(operation: Any, arguments: Any) -> None:
    out, remembered, _ = both(operation, arguments)
    outs, all_remembered = (
        outputs if isinstance(outputs, tuple | list) else (outputs,) for outputs in (out, remembered)
    )
    assert [look(tensor) for tensor in outs] == [look(tensor) for tensor in all_remembered]
    assert type(out) is type(remembered) and all(type(tensor) is FakeTensor for tensor in all_remembered)


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        (aten.t.default, lambda: (torch.empty(3, 4),)),
        (aten.slice.Tensor, lambda: (torch.empty(6, 4), 0, 2, 5)),
        (aten.split.Tensor, lambda: (torch.empty(6, 4), 2)),
    ],
    ids=lambda value: getattr(value, "_opname", ""),
)
def test_views_share_the_memory_of_the_new_argument(operation: Any, arguments: Any) -> None:
    out, remembered, (source, *_) = both(operation, arguments)
    outs, all_remembered = (
        outputs if isinstance(outputs, tuple | list) else (outputs,) for outputs in (out, remembered)
    )
    assert [look(tensor) for tensor in outs] == [look(tensor) for tensor in all_remembered]
    assert all(tensor.untyped_storage()._cdata == source.untyped_storage()._cdata for tensor in all_remembered)


def matrix(*shape: int) -> Tensor:
    """Somewhere in larger memory."""
    return torch.empty(99, dtype=torch.bfloat16)[5 : 5 + math.prod(shape)].view(shape)


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        (aten.alias.default, lambda: (matrix(3, 4),)),
        (aten.alias.default, lambda: (torch.empty(6, 4)[::2, :2][:0],)),  # nothing, far apart
        (aten.detach.default, lambda: (matrix(3, 4).t(),)),
        (aten.view.default, lambda: (matrix(3, 4), [2, 6])),
        (aten._unsafe_view.default, lambda: (matrix(3, 4), [12])),
        (aten.t.default, lambda: (matrix(3, 4),)),
        (aten.transpose.int, lambda: (matrix(3, 4, 2), 0, 2)),
        (aten.permute.default, lambda: (matrix(3, 4, 2), [2, 0, 1])),
        (aten.expand.default, lambda: (matrix(3, 1), [3, 7])),
        (aten.unsqueeze.default, lambda: (matrix(3, 4), 1)),
        (aten.select.int, lambda: (matrix(3, 4), 0, 2)),
        (aten.slice.Tensor, lambda: (matrix(6, 4), 0, 2, 5)),
        (aten.split.Tensor, lambda: (matrix(6, 4), 4)),
        (aten.unbind.int, lambda: (matrix(3, 4), 1)),
        (aten.stack.default, lambda: ([matrix(3, 4), matrix(3, 4)], 1)),
        (aten.clone.default, lambda: (matrix(3, 4).t(),)),
        (aten.empty_like.default, lambda: (matrix(3, 4).t(),)),
        (aten.zeros_like.default, lambda: (matrix(3, 4),)),
        (aten.ones_like.default, lambda: (matrix(3, 4),)),
        (aten.mm.default, lambda: (matrix(3, 4), matrix(5, 4).t())),
        (aten.bmm.default, lambda: (matrix(2, 3, 4), matrix(2, 4, 5))),
        (aten.addmm.default, lambda: (matrix(5), matrix(3, 4), matrix(4, 5))),
        (aten.sum.dim_IntList, lambda: (matrix(3, 4), [0])),
    ],
    ids=lambda value: getattr(value, "_opname", ""),
)
def test_meta_tensors_tell_the_same_as_fake_ones(operation: Any, arguments: Any) -> None:
    fake = FakeTensorMode()
    with fake:
        outcomes, args = Outcomes(fake, CPU), arguments()
        key = outcomes.key(operation, args, {})
        assert key is not None
        outcome = outcomes.learn(key, operation, args, {}, operation(*args))
        assert outcome.outputs
        assert outcomes.predict(key, operation, args, {}) == outcome


SHARDED = Layout(dp_shard=2, recompute=True, accumulate=True)


@pytest.mark.full
# Sharding with attention and dropout, and with convolutions; the others are made of the same operations.
@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("vit_digits", Layout()),
        ("stdlib_gpt", SHARDED),
        ("unet3d_blobs", SHARDED),
        pytest.param("vit_digits", SHARDED, marks=pytest.mark.soak),
        pytest.param("stdlib_gpt", Layout(), marks=pytest.mark.soak),
        pytest.param("unet3d_blobs", Layout(), marks=pytest.mark.soak),
    ],
    ids=str,
)
def test_a_trace_is_the_same_without_meta_tensors(name: str, layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_of(load_workload(name, None)({}))
    monkeypatch.setattr(Outcomes, "_of_devices", {})
    with_meta = trace(recipe, layout, 8)
    monkeypatch.setattr(Outcomes, "_of_devices", {})
    monkeypatch.setattr(outcomes, "_KNOWN_ON_META", frozenset())
    assert trace(recipe, layout, 8) == with_meta


def test_what_depends_on_the_device_or_is_wrong_is_not_told_by_meta_tensors() -> None:
    fake = FakeTensorMode()
    with fake:
        outcomes, norm_args = Outcomes(fake, CPU), (torch.empty(2, 8), [8], torch.empty(8), None, 1e-5)
        for operation, args, kwargs in [
            (aten.native_layer_norm.default, norm_args, {}),
            (aten.empty_like.default, norm_args[:1], {"device": torch.device("cpu")}),
            (aten.mm.default, (torch.empty(2, 3), torch.empty(2, 3)), {}),
        ]:
            key = outcomes.key(operation, args, kwargs)
            assert key is not None and outcomes.predict(key, operation, args, kwargs) is None


def test_an_operation_in_place_gives_its_argument() -> None:
    _, remembered, (argument, *_) = both(aten.add_.Tensor, lambda: (torch.empty(3), torch.empty(3)))
    assert remembered is argument


def test_numbers_of_different_types_are_told_apart() -> None:
    fake = FakeTensorMode()
    with fake:
        tensor, outcomes = torch.empty(3, dtype=torch.int64), Outcomes(fake, CPU)
        keys = {outcomes.key(aten.mul.Tensor, (tensor, number), {}) for number in (1, 1.0, True)}
    assert len(keys) == 3


def test_what_is_made_without_a_type_has_the_default_one_of_its_time() -> None:
    fake = FakeTensorMode()
    outcomes, keys = Outcomes(fake, CPU), []
    try:
        for default in (torch.float32, torch.bfloat16):
            torch.set_default_dtype(default)
            keys.append(outcomes.key(aten.empty.memory_format, ([3],), {}))
    finally:
        torch.set_default_dtype(torch.float32)
    assert None not in keys and keys[0] != keys[1]


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        (aten.unsqueeze_.default, lambda: (torch.empty(3), 0)),  # changes what its argument looks like
        (aten.add.out, lambda: (torch.empty(3), torch.empty(3))),  # gives what is not a positional argument
    ],
)
def test_what_cannot_be_told_is_not_remembered(operation: Any, arguments: Any) -> None:
    fake = FakeTensorMode()
    with fake:
        outcomes, args = Outcomes(fake, CPU), arguments()
        kwargs = {"out": torch.empty(3)} if operation is aten.add.out else {}
        key = outcomes.key(operation, args, kwargs)
        outcomes.learn(key, operation, args, kwargs, operation(*args, **kwargs))
        assert key is None or outcomes.cached(key) is None


def test_outputs_that_share_their_memory_are_not_remembered() -> None:
    fake = FakeTensorMode()
    with fake:
        outcomes, args, out = Outcomes(fake, CPU), (torch.empty(2, 7),), torch.empty(7, 2)
        key = outcomes.key(aten.sort.default, args, {})
        assert key is not None
        outcomes.learn(key, aten.sort.default, args, {}, (out, out.view(14)))
        assert outcomes.cached(key) is None
        outcomes.learn(key, aten.sort.default, args, {}, (out, torch.empty(14)))
        assert outcomes.cached(key) is not None


def test_real_tensors_and_constants_are_left_to_torch() -> None:
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    outcomes = Outcomes(fake, CPU)
    assert outcomes.key(aten.neg.default, (torch.ones(3),), {}) is None
    with fake:
        assert outcomes.key(aten.neg.default, (torch.tensor(1.0),), {}) is None  # its value is known
