"""Finds out how a model says that it can be divided, and how its hints say that it must be divided.

Whether a division also works is seen when it is traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

from torch import nn
from torch.utils._pytree import tree_leaves

from estimators.model import Divisions
from workloads.parallel.chain import shares_its_parts
from workloads.parallel.constraints import constraints_of
from workloads.parallel.exchanging.divided import most_ranks
from workloads.parallel.tp_plan.notation import split_outside
from workloads.protocol import Batch, Chain, Spatial, Split


def divisions_of(model: nn.Module, blocks: Sequence[nn.Module], batch: Batch) -> Divisions:
    """How ``model`` can be divided, from its ``Chain``, the ``Split`` of its ``blocks``, its ``Spatial``,
    its ``Divided`` and its ``Experts``.

    ``batch`` is any batch of samples, whose sizes decide into how many slabs they can be divided. Raises
    ``Contradiction`` for hints that exclude each other, or that the model cannot obey.
    """
    splits = [split for block in blocks if isinstance(split := getattr(block, "split", None), Split)]
    if len(splits) < len(blocks):
        splits = []
    outside = split_outside(model)
    parts = [*splits, outside] if outside is not None and len(splits) == len(blocks) else splits
    divisions = Divisions(
        most_parts=_most_parts(parts),
        in_parts=bool(splits) and all(split.branches for split in splits),
        most_stages=len(model.blocks) if isinstance(model, Chain) and not shares_its_parts(model) else 1,
        most_slabs=_most_slabs(model, batch),
        most_divided=most_ranks(model),
    )
    return replace(divisions, constraints=constraints_of(model, blocks, divisions))


def _most_parts(splits: Sequence[Split]) -> int:
    """The number of parts into which all of these can be divided, at most; one of 0 parts sets no limit."""
    return gcd(*(split.most_parts for split in splits)) or 1


def _most_slabs(model: nn.Module, batch: Batch) -> int:
    spatial, leaves = getattr(model, "spatial", None), tree_leaves(batch)
    if not isinstance(spatial, Spatial) or len(leaves) != len(spatial.dims):
        return 1
    sizes = [leaf.shape[dim] for leaf, dim in zip(leaves, spatial.dims, strict=True) if dim is not None]
    if any(size % spatial.multiple_of for size in sizes):
        return 1
    return gcd(*(size // spatial.multiple_of for size in sizes)) or 1
