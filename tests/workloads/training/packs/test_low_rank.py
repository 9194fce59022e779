"""Low-rank adapters are recognised by what they compute."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from workloads.training.packs.low_rank import low_rank_of

Function = Callable[["Adapter", Tensor], Tensor]


class Adapter(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.base, self.dropout = nn.Linear(16, 8).requires_grad_(False), nn.Dropout(0.3)
        self.first, self.second = nn.Parameter(torch.randn(3, 16)), nn.Parameter(torch.zeros(8, 3))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.function(self, x)


def added(self: Adapter, x: Tensor) -> Tensor:
    return 2.5 * linear(linear(self.dropout(x), self.first), self.second)


def bent(self: Adapter, x: Tensor) -> Tensor:
    return linear(linear(x, self.first).relu(), self.second)


def test_an_adapter_is_known_with_its_scale_though_it_still_adds_nothing() -> None:
    module = Adapter(added)
    adapter = low_rank_of(module, module.base)
    assert adapter is not None and adapter.scale == pytest.approx(2.5)
    assert (adapter.rank, adapter.dropout) == (3, 0.3)
    assert adapter.down is module.first and adapter.up is module.second and module.training


def test_what_is_no_product_of_both_is_none() -> None:
    module = Adapter(bent)
    assert low_rank_of(module, module.base) is None and low_rank_of(module, None) is None
