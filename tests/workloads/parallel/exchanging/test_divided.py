"""Divided tables and linear layers against whole ones, their traced memory, and models that cannot divide theirs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.curves.forks import in_forks
from benchmarks.features.feature import WORKLOADS
from estimators.axes import Spread
from estimators.model import INDIVISIBLE, Divisions, Layout, Plan
from estimators.tracing.tracer import trace_peak
from placement.planning.ways import list_ways
from tests.waiting import PATIENCE_SECONDS
from workloads.loading import load_workload
from workloads.parallel.exchanging.divided import (
    columns_of,
    divide_layers,
    divisible_layers,
    layers_to_divide,
    most_ranks,
)
from workloads.parallel.optimizers.local_step import step_on_local_parts
from workloads.protocol import Divided
from workloads.refusals import WorkloadError
from workloads.sandbox.recipe import recipe_of
from workloads.training.updates.norms import clip, global_norm


class Model(nn.Module):
    divided = Divided(("tables",))

    def __init__(self, *tables: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.tables = nn.ModuleList(tables or [nn.Embedding(9, 4, padding_idx=2)])
        self.head = nn.Linear(4, 1)


INDICES = torch.tensor([[0, 2], [8, 1], [3, 3], [5, 0], [2, 7]])
WEIGHTS = torch.arange(40.0).view(5, 2, 4)


def on_rank(rank: int, folder: Path) -> dict[str, Any]:
    """The first rank has three samples, the second one two; each loss is a sum, so that gradients differ by 1/2."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), 2), rank=rank, world_size=2)
    model = Model()
    divide_layers(divisible_layers(model), init_device_mesh("cpu", (2,), mesh_dim_names=("replicate",)))
    rows = slice(0, 3) if rank == 0 else slice(3, 5)
    vectors = model.tables[0](INDICES[rows])
    (vectors * WEIGHTS[rows]).sum().backward()
    gradient = model.tables[0].weight.grad
    assert isinstance(gradient, DTensor) and gradient.to_local().shape == (9, 2)
    answer = {"vectors": vectors.tolist(), "gradient": gradient.full_tensor().tolist()}
    dist.destroy_process_group()
    return answer


def test_ranks_with_unequal_numbers_of_samples_look_up_and_train_what_one_process_does(tmp_path: Path) -> None:
    answers = in_forks([partial(on_rank, rank, tmp_path) for rank in range(2)], PATIENCE_SECONDS)
    table = Model().tables[0]
    assert isinstance(table, nn.Embedding)
    vectors = table(INDICES)
    (vectors * WEIGHTS).sum().backward()
    assert table.weight.grad is not None
    assert answers[0]["vectors"] + answers[1]["vectors"] == vectors.tolist()
    for answer in answers:
        assert torch.tensor(answer["gradient"]).allclose(table.weight.grad / 2)


def head_on_rank(rank: int, folder: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), 2), rank=rank, world_size=2)
    model = Model()
    model.divided = Divided(("head",))
    model.head = nn.Linear(4, 6)
    with torch.no_grad():
        model.head.weight.copy_(HEAD)
        model.head.bias.zero_()
    divide_layers(divisible_layers(model), init_device_mesh("cpu", (2,), mesh_dim_names=("replicate",)))
    rows = slice(0, 3) if rank == 0 else slice(3, 5)
    inputs = WEIGHTS[rows].clone().requires_grad_()
    outputs = model.head(inputs)
    outputs.square().sum().backward()
    weight: Any = model.head.weight
    assert inputs.grad is not None and weight.to_local().shape == (3, 4)
    answer = {
        "outputs": outputs.tolist(),
        "of inputs": inputs.grad.tolist(),
        "of weight": weight.grad.full_tensor().tolist(),
    }
    dist.destroy_process_group()
    return answer


HEAD = torch.linspace(-1, 1, 24).view(6, 4)


def test_a_head_with_many_classes_is_divided_by_its_outputs(tmp_path: Path) -> None:
    answers = in_forks([partial(head_on_rank, rank, tmp_path) for rank in range(2)], PATIENCE_SECONDS)
    head, inputs = nn.Linear(4, 6), WEIGHTS.clone().requires_grad_()
    with torch.no_grad():
        head.weight.copy_(HEAD)
        head.bias.zero_()
    outputs = head(inputs)
    outputs.square().sum().backward()
    assert inputs.grad is not None and head.weight.grad is not None
    assert torch.tensor([*answers[0]["outputs"], *answers[1]["outputs"]]).allclose(outputs, atol=1e-5)
    assert torch.tensor([*answers[0]["of inputs"], *answers[1]["of inputs"]]).allclose(inputs.grad, atol=1e-4)
    for answer in answers:
        assert torch.tensor(answer["of weight"]).allclose(head.weight.grad / 2, rtol=1e-4)


def words(kind: str, rows: slice) -> tuple[Tensor, ...]:
    """Arguments of a bag for these of five samples, whose bags have 3, 0, 1, 2 and 2 words, or all two.

    The weights of words, if there are any, are the last argument, and are trained.
    """
    if kind == "of two":
        return (INDICES[rows],)
    sizes = torch.tensor([3, 0, 1, 2, 2])
    ends = sizes.cumsum(0)
    first, last = int(ends[rows.start - 1]) if rows.start else 0, int(ends[rows.stop - 1])
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), ends])[rows.start : rows.stop + (kind == "with an end")]
    flat = torch.tensor([0, 2, 8, 1, 3, 3, 5, 7])[first:last]
    weights = torch.linspace(0.5, 2, 8)[first:last].requires_grad_()
    return (flat, offsets - first, weights) if kind == "weighted" else (flat, offsets - first)


BAGS = [
    *(("sum", "of two", False), ("mean", "ragged", False), ("max", "with an end", False), ("sum", "weighted", False)),
    *(("sum", "of two", True), ("mean", "ragged", True), ("sum", "weighted", True)),
]


def bag_of(mode: str, kind: str, sparse: bool) -> Model:
    has_end = kind == "with an end"
    return Model(nn.EmbeddingBag(9, 4, mode=mode, padding_idx=2, include_last_offset=has_end, sparse=sparse))


def bags_on_rank(rank: int, folder: Path) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), 2), rank=rank, world_size=2)
    mesh, answers = init_device_mesh("cpu", (2,), mesh_dim_names=("replicate",)), []
    rows = slice(0, 3) if rank == 0 else slice(3, 5)
    for mode, kind, sparse in BAGS:
        model = bag_of(mode, kind, sparse)
        divide_layers(divisible_layers(model), mesh)
        arguments = words(kind, rows)
        pooled = model.tables[0](*arguments)
        (pooled * WEIGHTS[rows, 0]).sum().backward()
        gradient: Any = model.tables[0].weight.grad
        assert gradient.is_sparse == sparse
        local = gradient.to_local() if not sparse else gradient._local_tensor.to_dense()
        of_weights = arguments[-1].grad
        answers.append(
            {
                "pooled": pooled.tolist(),
                "gradient": DTensor.from_local(local, mesh, [Shard(1)]).full_tensor().tolist(),
                "of weights": [] if of_weights is None else of_weights.tolist(),
            }
        )
    dist.destroy_process_group()
    return answers


def test_bags_of_any_size_are_pooled_and_trained_as_in_one_process(tmp_path: Path) -> None:
    answers = in_forks([partial(bags_on_rank, rank, tmp_path) for rank in range(2)], PATIENCE_SECONDS)
    for (mode, kind, sparse), *of_ranks in zip(BAGS, *answers, strict=True):
        table, arguments = bag_of(mode, kind, sparse).tables[0], words(kind, slice(0, 5))
        assert isinstance(table, nn.EmbeddingBag)
        pooled = table(*arguments)
        (pooled * WEIGHTS[:, 0]).sum().backward()
        assert table.weight.grad is not None
        assert torch.tensor([*of_ranks[0]["pooled"], *of_ranks[1]["pooled"]]).allclose(pooled)
        for answer in of_ranks:
            assert torch.tensor(answer["gradient"]).allclose(table.weight.grad.to_dense() / 2)
        if kind == "weighted":
            assert arguments[-1].grad is not None
            of_weights = torch.tensor([*of_ranks[0]["of weights"], *of_ranks[1]["of weights"]])
            assert of_weights.allclose(arguments[-1].grad)


SPARSE: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "SparseAdam": partial(torch.optim.SparseAdam, lr=0.1),
    "Adagrad": partial(torch.optim.Adagrad, lr=0.1),
    "SGD": partial(torch.optim.SGD, lr=0.1),
}


def sparse_table() -> nn.Embedding:
    return nn.Embedding(9, 4, sparse=True, _weight=torch.linspace(-1, 1, 36).view(9, 4))


def sparse_steps(table: Any, factor: float, rows: slice, make_optimizer: Any) -> None:
    """Two updates, each of two micro-batches, with clipped gradients; row 4 is never looked up."""
    optimizer = step_on_local_parts(make_optimizer([table.weight]))
    for step in range(2):
        for number in range(2):
            vectors = table((INDICES[rows] + step + number) % 4)
            (factor * (vectors * WEIGHTS[rows]).pow(2).sum()).backward()
        norm = global_norm([table.weight], None)
        assert table.weight.grad.is_sparse and norm > 1
        clip([table.weight], norm, 1.0)
        optimizer.step()
        optimizer.zero_grad()


def sparse_on_rank(rank: int, folder: Path) -> list[Any]:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), 2), rank=rank, world_size=2)
    mesh, answers = init_device_mesh("cpu", (2,), mesh_dim_names=("replicate",)), []
    for make_optimizer in SPARSE.values():
        model = Model(sparse_table())
        divide_layers(divisible_layers(model), mesh)
        sparse_steps(model.tables[0], 1, slice(0, 3) if rank == 0 else slice(3, 5), make_optimizer)
        weight: Any = model.tables[0].weight
        answers.append(weight.full_tensor().tolist())
    dist.destroy_process_group()
    return answers


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's Adagrad
def test_rows_that_were_looked_up_are_updated_as_in_one_process(tmp_path: Path) -> None:
    answers = in_forks([partial(sparse_on_rank, rank, tmp_path) for rank in range(2)], PATIENCE_SECONDS)
    for name, *of_ranks in zip(SPARSE, *answers, strict=True):
        table, before = sparse_table(), sparse_table().weight
        sparse_steps(table, 0.5, slice(0, 5), SPARSE[name])
        assert not table.weight[:4].isclose(before[:4]).any() and table.weight[4:].equal(before[4:])
        for answer in of_ranks:
            assert torch.tensor(answer).allclose(table.weight, atol=1e-6), answer


@pytest.mark.full
@pytest.mark.sample
@pytest.mark.parametrize("axis", ["dp_replicate", "dp_shard"])
def test_a_trace_adds_up_the_rows_that_all_ranks_look_up(axis: str) -> None:
    recipe = recipe_of(load_workload("tables.py:Clicks", WORKLOADS)({"width": 64, "optimizer": "SGD", "sparse": True}))
    layout = Plan(1, 4, divided=True, **{axis: 2}).layout  # type: ignore[arg-type]
    few, many = (trace_peak(recipe, layout, 1, batch=batch).parts_at(1)["gradients"] for batch in (8, 16))
    row_bytes = 3 * (8 + 4 * 32) + 6 * (8 + 4 * 64) + 6 * (8 + 4 * 32)  # of a sample: tables, words and tags
    assert many - few == pytest.approx(8 * row_bytes, rel=0.15), "not 16 times, as each rank adds all rows"


def test_each_rank_holds_its_columns_of_tables_and_a_linear_layer_and_the_whole_rest() -> None:
    recipe = recipe_of(load_workload("tables.py:Clicks", WORKLOADS)({"width": 64}))
    plain = trace_peak(recipe, Layout(), 2).parts_at(2)
    held = trace_peak(recipe, Plan(2, dp_replicate=4, divided=True).layout, 2).parts_at(2)
    tables = 4 * (347 * 64 + 200 * 128 + 200 * 64 + 128 * 64 + 64)
    assert held["parameters"] == plain["parameters"] - tables * 3 // 4
    assert held["optimizer"] - plain["optimizer"] == pytest.approx(-2 * tables * 3 / 4, rel=1e-3)


def test_ranks_divide_the_columns_of_all_tables() -> None:
    assert most_ranks(Model(nn.Embedding(5, 12), nn.Embedding(7, 8))) == 4
    assert most_ranks(nn.Embedding(5, 12)) == 1, "the model says nothing"
    ways = set(list_ways(Divisions(most_divided=4), 4))
    assert ways - set(list_ways(INDIVISIBLE, 4)) == {
        Spread(dp_replicate=replicas, dp_shard=4 // replicas, divided=True, recompute=recompute, selective=selective)
        for replicas in (1, 2, 4)
        for recompute, selective in [(False, False), (True, False), (True, True)]
    }
    assert not any(way.divided for way in list_ways(Divisions(most_divided=4), 8))
    eight = list_ways(Divisions(most_divided=4, most_parts=2, most_stages=2), 8)
    assert {(way.tp, way.pp) for way in eight if way.divided} == {(1, 2), (2, 1), (2, 2)}


BESIDE = [
    Plan(8, dp_shard=2, divided=True),
    Plan(4, dp_shard=2, dp_replicate=2, divided=True),
    Plan(8, dp_shard=2, tp=2, sequence_parallel=True, divided=True),
    Plan(2, 4, dp_replicate=2, pp=2, divided=True),
    Plan(2, 4, dp_shard=2, pp=2, cut=(5, 3), divided=True),
]


@pytest.mark.full
@pytest.mark.sample
@pytest.mark.parametrize("plan", BESIDE, ids=str)
def test_ends_that_ranks_divide_train_the_same_beside_shards_stages_and_tensor_parallel_blocks(
    ranks: Any, plan: Plan
) -> None:
    options: dict[str, Any] = {
        "workload": "plans.py:Tokens",
        "code_dir": str(WORKLOADS),
        "steps": 3,
        "metrics": ["loss"],
    }
    options["params"] = {"batch": 16, "lr": 3e-3}
    expected = dict(ranks.curve(Plan(16), **options))
    reports = ranks.curve(plan, **options)
    assert [step for step, _ in reports] == list(expected)
    for step, values in reports:
        assert values == pytest.approx(expected[step], rel=1e-5), step


def test_a_layer_is_divided_once() -> None:
    model = Model()
    model.divided = Divided(("head",))
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("divided",))
        model.head = nn.Linear(4, 6)
        divide_layers(divisible_layers(model), mesh)
        with pytest.raises(ValueError, match="tensor-parallel ranks divide a Linear that `divided` names as well"):
            divide_layers(divisible_layers(model), mesh)
    finally:
        dist.destroy_process_group()


def test_the_whole_model_must_have_layers_that_so_many_ranks_divide() -> None:
    with pytest.raises(ValueError, match="Linear has no layers that are divided"):
        layers_to_divide(nn.Linear(4, 4), 2)
    with pytest.raises(ValueError, match=r"the 4 columns of tables\.0 cannot be divided evenly over 3 ranks"):
        layers_to_divide(Model(), 3)


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (nn.Embedding(4, 4, max_norm=1.0), "max_norm needs whole rows"),
        (nn.Embedding(4, 4, scale_grad_by_freq=True), "scale_grad_by_freq counts"),
        (nn.Linear(4, 4), "no nn.Embedding or nn.EmbeddingBag is in it"),
    ],
)
def test_tables_that_cannot_be_divided_are_refused_with_the_reason(table: nn.Module, why: str) -> None:
    with pytest.raises(WorkloadError, match=why):
        columns_of(Model(table))


def test_shared_weights_and_unknown_names_are_refused() -> None:
    tied = Model()
    assert isinstance(tied.tables[0], nn.Embedding)
    tied.head.weight = tied.tables[0].weight
    with pytest.raises(WorkloadError, match=r"tables\.0 cannot be .* as another module has the same"):
        columns_of(tied)
    unknown = Model()
    unknown.divided = Divided(("table",))
    with pytest.raises(WorkloadError, match="names 'table', but the model has no such module"):
        columns_of(unknown)
