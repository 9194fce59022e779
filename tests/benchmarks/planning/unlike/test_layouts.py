"""Conversions between layouts are right on real ranks, and no cheaper sequence of steps exists."""

from __future__ import annotations

from itertools import product
from math import inf

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.planning.unlike.layouts import (
    FREE,
    Conversion,
    Conversions,
    Mesh,
    Receivers,
    Step,
    Tensor,
    TensorLayout,
    convert,
    single_steps,
)
from estimators.devices.catalogue import gpu
from estimators.devices.communication import Group, collective_seconds
from estimators.devices.kind import Links


def known_links() -> Links:
    links = gpu("V100-32").links
    assert links is not None
    return links


LINKS = known_links()
NODE = Mesh((Group(8),), LINKS)
NODES = Mesh((Group(4, 8), Group(8)), LINKS)
SMALL = Mesh((Group(2, 2), Group(2)), LINKS)
COPIES = TensorLayout(((), ()))
ROWS, COLUMNS = TensorLayout(((0,), ())), TensorLayout(((), (0,)))
SUM = TensorLayout(((), ()), frozenset({0}))

Shards = dict[tuple[int, ...], npt.NDArray[np.int64]]


def layouts(num_mesh: int, num_dimensions: int = 2) -> list[TensorLayout]:
    """All layouts of a tensor, with divisions in any order."""
    every_layout = set()
    for choice in product(["copies", "sum", *range(num_dimensions)], repeat=num_mesh):
        split = [tuple(k for k in range(num_mesh) if choice[k] == index) for index in range(num_dimensions)]
        partial = frozenset(k for k in range(num_mesh) if choice[k] == "sum")
        every_layout |= {
            TensorLayout(tuple(split), partial),
            TensorLayout(tuple(dimensions[::-1] for dimensions in split), partial),
        }
    return sorted(every_layout, key=repr)


def mesh_strategy() -> st.SearchStrategy[Mesh]:
    one_step = st.builds(
        lambda n, stride: Mesh((Group(n, stride),), LINKS), st.sampled_from([1, 2, 4]), st.sampled_from([1, 8])
    )
    two = st.builds(
        lambda outer, inner: Mesh((Group(outer, inner), Group(inner)), LINKS),
        st.sampled_from([2, 4]),
        st.sampled_from([2, 4, 8]),
    )
    return st.one_of(one_step, two)


TENSORS = st.builds(Tensor, st.tuples(*[st.sampled_from([64, 512, 8192])] * 2), st.sampled_from([2, 4]))


@st.composite
def questions(draw: st.DrawFn, num: int) -> tuple[Tensor, Mesh, list[TensorLayout]]:
    mesh = draw(mesh_strategy())
    every = layouts(len(mesh.groups))
    return draw(TENSORS), mesh, [draw(st.sampled_from(every)) for _ in range(num)]


@given(questions(2))
@settings(max_examples=60, deadline=None)
def test_no_sequence_of_up_to_four_steps_is_cheaper(question: tuple[Tensor, Mesh, list[TensorLayout]]) -> None:
    tensor, mesh, (source, target) = question
    conversion = convert(tensor, source, target, mesh)
    cheapest = inf

    def extend(layout: TensorLayout, seconds: float, num_left: int) -> None:
        nonlocal cheapest
        if layout == target:
            cheapest = min(cheapest, seconds)
        if num_left:
            for step in single_steps(tensor, layout, mesh):
                extend(step.layout, seconds + step.seconds, num_left - 1)

    extend(source, 0.0, 4)
    assert conversion.seconds <= cheapest * (1 + 1e-9)
    if len(conversion.steps) <= 4:
        assert conversion.seconds == pytest.approx(cheapest)


@given(questions(3))
@settings(max_examples=100, deadline=None)
def test_a_detour_over_another_layout_is_never_cheaper(question: tuple[Tensor, Mesh, list[TensorLayout]]) -> None:
    tensor, mesh, (source, between, target) = question
    direct = convert(tensor, source, target, mesh).seconds
    detour = convert(tensor, source, between, mesh).seconds + convert(tensor, between, target, mesh).seconds
    assert direct <= detour * (1 + 1e-9)


@pytest.mark.parametrize("layout", layouts(2), ids=str)
def test_the_same_layout_costs_nothing(layout: TensorLayout) -> None:
    assert convert(Tensor((64, 64)), layout, layout, NODES) == Conversion(())


@given(questions(2))
@settings(max_examples=200, deadline=None)
def test_the_steps_really_make_the_target_of_the_shards_of_the_source(
    question: tuple[Tensor, Mesh, list[TensorLayout]],
) -> None:
    _, mesh, (source, target) = question
    matrix = np.arange(64 * 32).reshape(64, 32)
    shards = divided(matrix, source, mesh)
    for step in convert(Tensor((64, 32)), source, target, mesh).steps:
        shards = run(step, shards, mesh, source)
        source = step.layout
    assert_is(matrix, shards, target, mesh)


@pytest.mark.parametrize("source", layouts(2), ids=str)
def test_every_layout_on_four_ranks_is_converted_right_to_every_other(source: TensorLayout) -> None:
    matrix = np.arange(4 * 8).reshape(4, 8)
    for target in layouts(2):
        shards, layout = divided(matrix, source, SMALL), source
        for step in convert(Tensor((4, 8)), source, target, SMALL).steps:
            shards = run(step, shards, SMALL, layout)
            layout = step.layout
        assert_is(matrix, shards, target, SMALL)


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [
        (ROWS, COPIES, "all-gather along mesh 0"),
        (SUM, COPIES, "all-reduce along mesh 0"),
        (SUM, ROWS, "reduce-scatter along mesh 0"),
        (ROWS, COLUMNS, "all-to-all along mesh 0"),
        (COPIES, ROWS, "slice along mesh 0"),
        (COPIES, COPIES, "nothing to do"),
    ],
)
def test_each_collective_is_the_cheapest_where_textbooks_use_it(
    source: TensorLayout, target: TensorLayout, said: str
) -> None:
    assert str(convert(Tensor((4096, 4096)), source, target, NODE)) == said


def test_a_sum_over_nodes_is_reduced_in_three_steps_that_send_an_eighth_between_nodes() -> None:
    source, tensor = TensorLayout(((), ()), frozenset({0, 1})), Tensor((8192, 8192))
    conversion = convert(tensor, source, COPIES, NODES)
    assert [(step.kind, step.dimension) for step in conversion.steps] == [
        ("reduce_scatter", 1),
        ("all_reduce", 0),
        ("all_gather", 1),
    ]
    assert conversion.steps[1].num_bytes == tensor.num_bytes / 8
    naive = collective_seconds("all_reduce", tensor.num_bytes, NODES.groups[0], LINKS)
    assert conversion.seconds < naive


def test_a_message_to_other_ranks_is_sliced_before_and_gathered_behind() -> None:
    """The scatter-gather of Megatron-LM (SC 2021): copies are not sent over the network several times."""
    receivers = Receivers(NODE, 8)
    conversion = convert(Tensor((8192, 8192)), COPIES, COPIES, NODE, receivers)
    assert [step.kind for step in conversion.steps] == ["slice", "message", "all_gather"]
    single_seconds = collective_seconds("message", 8192 * 8192 * 2, Group(2, 8), LINKS)
    assert conversion.seconds < single_seconds


def test_more_receivers_than_senders_get_copies_one_after_another() -> None:
    two, single_mesh = Mesh((Group(2),), LINKS), Mesh((Group(1),), LINKS)
    conversion = convert(Tensor((64, 64)), COPIES, COPIES, single_mesh, Receivers(two, 1))
    single = collective_seconds("message", 64 * 64 * 2, Group(2), LINKS)
    assert conversion.seconds == pytest.approx(2 * single)


def test_a_layout_that_does_not_divide_the_tensor_is_refused() -> None:
    with pytest.raises(ValueError, match="equal parts"):
        convert(Tensor((12, 8)), ROWS, COPIES, NODE)
    with pytest.raises(ValueError, match="once"):
        TensorLayout(((0,), (0,)))


def test_each_conversion_is_found_once() -> None:
    conversions = Conversions(NODE)
    tensor = Tensor((64, 64))
    assert conversions.between(tensor, ROWS, COPIES) is conversions.between(tensor, ROWS, COPIES)
    assert conversions.between(tensor, ROWS, COPIES) == convert(tensor, ROWS, COPIES, NODE)


def ranks(mesh: Mesh) -> list[tuple[int, ...]]:
    return list(product(*(range(group.num_ranks) for group in mesh.groups)))


def divided(tensor: npt.NDArray[np.int64], layout: TensorLayout, mesh: Mesh) -> Shards:
    """The part of each rank; the parts of a sum differ on all ranks."""
    parts = {}
    for rank in ranks(mesh):
        part = piece(tensor, layout, mesh, rank)
        if layout.partial:
            first = all(rank[k] == 0 for k in layout.partial)
            noise = sum((rank[k] + 1) * 10 ** (3 * index) for index, k in enumerate(sorted(layout.partial)))
            others = total_noise(layout, mesh) - noise if first else 0
            part = part - others if first else np.full_like(part, noise)
        parts[rank] = part
    return parts


def total_noise(layout: TensorLayout, mesh: Mesh) -> int:
    rows = product(*(range(mesh.groups[k].num_ranks) for k in sorted(layout.partial)))
    return sum(sum((at + 1) * 10 ** (3 * index) for index, at in enumerate(row)) for row in rows)


def piece(
    tensor: npt.NDArray[np.int64], layout: TensorLayout, mesh: Mesh, rank: tuple[int, ...]
) -> npt.NDArray[np.int64]:
    for dimension, split in enumerate(layout.splits):
        for k in split:
            tensor = np.split(tensor, mesh.groups[k].num_ranks, axis=dimension)[rank[k]]
    return tensor


def run(step: Step, shards: Shards, mesh: Mesh, before: TensorLayout) -> Shards:
    """The step, by plain numpy on the shards of all ranks."""
    k, num = step.dimension, mesh.groups[step.dimension].num_ranks
    old, new = before.split_by(k), step.layout.split_by(k)
    results = {}
    for rank, mine in shards.items():
        group = [shards[*rank[:k], other, *rank[k + 1 :]] for other in range(num)]
        if step.kind == "all_gather":
            assert old is not None
            result = np.concatenate(group, axis=old)
        elif step.kind == "all_reduce":
            result = np.sum(group, axis=0)
        elif step.kind == "reduce_scatter":
            assert new is not None
            result = np.split(np.sum(group, axis=0), num, axis=new)[rank[k]]
        elif step.kind == "all_to_all":
            assert old is not None and new is not None
            result = np.concatenate(
                [np.split(rank_in_group, num, axis=new)[rank[k]] for rank_in_group in group], axis=old
            )
        elif step.kind == "slice":
            assert new is not None
            result = np.split(mine, num, axis=new)[rank[k]]
        else:
            assert step.kind in FREE
            if old is None:
                result = mine if rank[k] == 0 else np.zeros_like(mine)
            else:
                parts = [mine if other == rank[k] else np.zeros_like(mine) for other in range(num)]
                result = np.concatenate(parts, axis=old)
        results[rank] = result
    return results


def assert_is(tensor: npt.NDArray[np.int64], shards: Shards, layout: TensorLayout, mesh: Mesh) -> None:
    """All ranks have what the layout says; parts of a sum add up to it."""
    for rank in ranks(mesh):
        added = product(
            *(range(mesh.groups[k].num_ranks) if k in layout.partial else [rank[k]] for k in range(len(rank)))
        )
        total = np.sum([shards[rank] for rank in added], axis=0)
        np.testing.assert_array_equal(total, piece(tensor, layout, mesh, rank))
