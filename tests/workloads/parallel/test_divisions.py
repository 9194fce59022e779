"""A model says how it can be divided; models that say nothing cannot be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from estimators.model import INDIVISIBLE, Divisions
from workloads.models.stdlib_gpt import CharacterGpt
from workloads.models.unet3d_blobs import Unet3d
from workloads.parallel.divisions import divisions_of
from workloads.protocol import Spatial, Split


def test_a_chain_of_blocks_with_heads_is_cut_and_split() -> None:
    model = CharacterGpt(depth=3, width=24, heads=6, context=8, dropout=0.0)
    divisions = divisions_of(model, list(model.blocks), torch.zeros(1, 9))
    assert divisions == Divisions(most_parts=6, in_parts=True, most_stages=3)


def test_ends_that_share_parameters_are_not_cut_apart() -> None:
    model = CharacterGpt(depth=3, width=24, heads=6, context=8, dropout=0.0)
    model.head.weight = model.characters.weight
    assert divisions_of(model, list(model.blocks), torch.zeros(1, 9)).most_stages == 1


@pytest.mark.parametrize(("side", "slabs"), [(16, 4), (24, 6), (18, 1)])
def test_space_is_divided_into_slabs_that_the_model_can_shrink(side: int, slabs: int) -> None:
    volumes = torch.zeros(1, 1, side, side, side)
    assert divisions_of(Unet3d(2, 8), [], (volumes, volumes)).most_slabs == slabs


def test_blocks_are_split_into_what_divides_the_heads_of_all_of_them() -> None:
    blocks = [_block(heads) for heads in (8, 12)]
    assert divisions_of(nn.Sequential(*blocks), blocks, torch.zeros(1)) == Divisions(most_parts=4)
    assert divisions_of(nn.Sequential(*blocks), [*blocks, nn.Linear(2, 2)], torch.zeros(1)) == INDIVISIBLE


def test_a_batch_that_does_not_match_what_is_said_of_space_is_not_divided() -> None:
    model: Any = nn.Conv2d(1, 1, 1)
    model.spatial = Spatial(dims=(2, None))
    images: Tensor = torch.zeros(1, 1, 4, 4)
    assert divisions_of(model, [], (images, torch.zeros(1))).most_slabs == 4
    assert divisions_of(model, [], images) == INDIVISIBLE


def _block(heads: int) -> nn.Module:
    block: Any = nn.Linear(2, 2)
    block.split = Split(columns=(), rows=(), norms=(), most_parts=heads)
    return block
