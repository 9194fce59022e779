"""A layer that is widened computes what its parent does, and says what does not fit."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from scamp.workload import inheritance
from scamp.workload.inheritance import Units


@pytest.mark.parametrize("make", [inheritance.kept, inheritance.duplicated])
def test_two_layers_compute_the_same_with_more_units_between_them(make: object) -> None:
    torch.manual_seed(0)
    up, down, wide_up, wide_down = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3), nn.Conv2d(3, 12, 3), nn.Conv2d(12, 5, 3)
    units: Units = make(4, 12)  # type: ignore[operator]
    inheritance.widen(wide_up, up, outputs=units)
    inheritance.widen(wide_down, down, inputs=units)
    x = torch.randn(2, 3, 8, 8)
    assert torch.allclose(wide_down(wide_up(x).relu()), down(up(x).relu()), atol=1e-6)
    assert wide_up.weight.abs().sum((1, 2, 3)).min() > 0.1, "new units are not dead"


def test_normalisations_keep_what_they_compute_of_duplicated_units() -> None:
    torch.manual_seed(0)
    norm, wide, units = nn.LayerNorm(4), nn.LayerNorm(8), inheritance.duplicated(4, 8)
    nn.init.normal_(norm.weight)
    inheritance.widen(wide, norm, outputs=units)
    x = torch.randn(3, 4)
    assert torch.allclose(wide(x.repeat(1, 2)), norm(x).repeat(1, 2), atol=1e-6)


def test_units_stand_for_rows_of_heads_and_for_channels_of_positions() -> None:
    assert inheritance.kept(2, 3).each(2).sources.tolist() == [0, 1, 2, 3, -1, -1]
    tiled = inheritance.kept(2, 3).tiled(2)
    assert tiled.sources.tolist() == [0, 1, -1, 2, 3, -1] and tiled.num_parent == 4
    assert tiled.shares.tolist() == [1, 1, 0, 1, 1, 0]


def test_a_smaller_layer_keeps_the_first_units() -> None:
    small, large = nn.Linear(2, 3), nn.Linear(4, 6)
    inheritance.widen(small, large, outputs=inheritance.kept(6, 3), inputs=inheritance.kept(4, 2))
    assert torch.equal(small.weight, large.weight[:3, :2]) and torch.equal(small.bias, large.bias[:3])


def test_identity_passes_on_what_a_relu_gives_and_silence_adds_nothing() -> None:
    x = torch.randn(2, 4, 5, 5).relu()
    for layer, inputs in ((nn.Conv2d(4, 4, 3, padding=1), x), (nn.Linear(5, 5), x)):
        inheritance.identity(layer)
        assert torch.equal(functional.relu(layer(inputs)), inputs)
        inheritance.silence(layer)
        assert not layer(inputs).any()


def test_tensors_of_equal_name_and_shape_are_copied_and_the_others_named() -> None:
    first, copy = nn.Linear(2, 3), nn.Linear(2, 3)
    parent, model = nn.Sequential(first, nn.BatchNorm1d(3)), nn.Sequential(copy, nn.BatchNorm1d(4))
    left = inheritance.copy_equal(model, parent)
    assert torch.equal(copy.weight, first.weight)
    assert left == ["1.weight", "1.bias", "1.running_mean", "1.running_var"]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="12 units are not a multiple of the parent's 8"):
        inheritance.duplicated(8, 12)
    with pytest.raises(ValueError, match=r"becomes one of shape \[6, 4\], not \[3, 4\]"):
        inheritance.widen(nn.Linear(4, 3), nn.Linear(4, 6))
    with pytest.raises(ValueError, match="dimension 0 of the parent has 6 units, not 5"):
        inheritance.widen(nn.Linear(4, 7), nn.Linear(4, 6), outputs=inheritance.kept(5, 7))
    with pytest.raises(ValueError, match="knows no LSTM"):
        inheritance.widen(nn.LSTM(1, 1), nn.LSTM(1, 1))
    with pytest.raises(ValueError, match="convolution with groups"):
        inheritance.widen(nn.Conv1d(4, 4, 1, groups=2), nn.Conv1d(4, 4, 1, groups=2), inputs=inheritance.kept(2, 2))
