"""Fake kernels keep what real ones keep, and refuse what real ones refuse."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from estimators.tracing import kernels  # noqa: F401  (registers them)
from estimators.tracing.workspace import onednn


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
