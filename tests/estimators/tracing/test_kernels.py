"""Fake kernels keep what real ones keep, and refuse what real ones refuse."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from estimators.tracing import kernels  # noqa: F401  (registers them)
from estimators.tracing.device.cpu import onednn


@pytest.mark.skipif(not onednn.is_available(), reason="needs a torch with a symbol table")
@pytest.mark.parametrize("batch_first", [True, False])
def test_fake_lstms_keep_what_real_ones_keep(batch_first: bool) -> None:
    def kept_bytes(lstm: nn.Module, sequence: Tensor) -> int:
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor), lambda none: none):
            lstm(sequence)
        return sum({id(tensor): tensor.nbytes for tensor in kept}.values())

    real = kept_bytes(nn.LSTM(20, 24, batch_first=batch_first), torch.randn(7, 3, 20))
    with FakeTensorMode():
        assert kept_bytes(nn.LSTM(20, 24, batch_first=batch_first), torch.randn(7, 3, 20)) == real


def last(*shape: int) -> Tensor:
    """An image with channels last."""
    return torch.randn(shape).to(memory_format=torch.channels_last)


def pixel(dtype: torch.dtype = torch.float32) -> Tensor:
    """Images of one pixel, with the strides of images with channels last."""
    return torch.randn(2, 8, dtype=dtype).as_strided((2, 8, 1, 1), (8, 1, 8, 8))


@pytest.mark.parametrize(
    "source",
    [
        torch.randn(2, 8, 1, 1),
        pixel(),
        pixel(torch.bfloat16),
        last(2, 1, 4, 4),
        last(2, 8, 4, 4),
        last(1, 8, 4, 4),
        torch.randn(2, 16, 4, 4)[:, ::2],
        torch.randn(4, 8, 4, 2).permute(3, 1, 2, 0),
        torch.randn(2, 8, 5),
        torch.randn(6, 8),
        torch.randn(2, 8, 3, 3, 3).to(memory_format=torch.channels_last_3d),
    ],
    ids=lambda source: f"{tuple(source.shape)} {source.stride()}",
)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", ["contiguous", "like the input", "transposed"])
def test_batch_norm_has_the_strides_of_a_real_one(source: Tensor, training: bool, kind: str) -> None:
    def strides(source: Tensor) -> list[tuple[torch.dtype, tuple[int, ...], tuple[int, ...]]]:
        ones = [source.new_ones(8 if source.shape[1] > 1 else 1, dtype=torch.float32) for _ in range(4)]
        made = torch.ops.aten.native_batch_norm(source, *ones, training, 0.1, 1e-5)
        gradient = source
        if kind != "like the input":
            gradient = torch.ones_like(source, memory_format=torch.contiguous_format)
        if kind == "transposed":
            gradient = gradient.transpose(0, 1).contiguous().transpose(0, 1)
        back = torch.ops.aten.native_batch_norm_backward(
            gradient, source, ones[0], *ones[2:], *made[1:], training, 1e-5, [True, True, True]
        )
        return [(tensor.dtype, tensor.shape, tensor.stride()) for tensor in (*made, *back)]

    real = strides(source)
    with FakeTensorMode() as fake:
        assert strides(fake.from_tensor(source)) == real


@pytest.mark.parametrize("product", [torch.mm, torch.matmul, lambda a, b: torch.addmm(torch.zeros(4, 4), a, b)])
def test_matrices_of_different_types_are_not_multiplied(product: Callable[[Tensor, Tensor], Tensor]) -> None:
    first, second = torch.zeros(4, 4), torch.zeros(4, 4, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match="same dtype"):
        product(first, second)
    with FakeTensorMode() as fake, pytest.raises(RuntimeError, match=r"same dtype.*float32 != torch.bfloat16"):
        product(fake.from_tensor(first), fake.from_tensor(second))


@pytest.mark.parametrize(("width", "dtype"), [(36, torch.bfloat16), (36, torch.float32), (34, torch.float32)])
def test_groups_are_multiplied_if_their_strides_are_multiples_of_16_bytes(width: int, dtype: torch.dtype) -> None:
    def multiplied(rows: Tensor, weight: Tensor) -> str:
        try:
            return str(nn.functional.grouped_mm(rows, weight, offs=torch.tensor([8, 16], dtype=torch.int32)).shape)
        except RuntimeError as error:
            return str(error).splitlines()[0]

    rows, weight = torch.zeros(16, width, dtype=dtype), torch.zeros(2, width, 8, dtype=dtype)
    real = multiplied(rows, weight)
    assert ("16 bytes" in real) == (width * dtype.itemsize % 16 > 0)
    with FakeTensorMode() as fake:
        assert multiplied(fake.from_tensor(rows), fake.from_tensor(weight)) == real


def test_sparse_matrices_are_not_multiplied() -> None:
    with FakeTensorMode(), pytest.raises(NotImplementedError, match="a product with a sparse matrix"):
        torch.sparse.mm(torch.eye(3).to_sparse(), torch.zeros(3, 2))
