"""The traced peak is that of a real step, for models of many kinds."""

from __future__ import annotations

import gc
import itertools
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from estimators.model import CATEGORIES, MIB, Layout
from estimators.peaks.envelope import Envelope, PeakTable, constant_peak
from estimators.tracing.device import CUDA
from estimators.tracing.session import opened
from estimators.tracing.tracer import trace, trace_peak
from tests.traced import WIDTH, Deep, Mlp, make_batch, recipe
from workloads.function import FunctionWorkload
from workloads.parallel.apply import apply_plan
from workloads.sandbox.recipe import recipe_of
from workloads.training.memory.peak import measure_peak

pytestmark = pytest.mark.full

CPU = torch.device("cpu")
SELECTIVE = Layout(recompute=True, selective=True)
TOLERANCE_BYTES = 1024  # against torch's own record of a real step


class Similarities(Mlp):
    """Compares every sample with every other: memory grows with the square of the micro-batch."""

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        return (x @ x.T).softmax(-1) @ x


class Hoarder(Mlp):
    """Keeps an activation of every step: nothing bounds its memory."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.kept.append(x.detach() * 2)
        return super().forward(x)


class Positions(Mlp):
    """The gradient of ``positions`` of one sample is a view of the sample's: no sum over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(100, WIDTH))
        self.norm = nn.Identity()  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[:, None] + self.positions).mean(1)


def linear() -> Any:
    return nn.Linear(72, 60011), lambda batch: torch.randn(batch, 72), squared


def embedding() -> Any:
    return nn.Embedding(60011, 72), lambda batch: torch.randint(0, 60011, (batch, 8)), squared


def squared(model: nn.Module, x: Tensor) -> Tensor:
    output: Tensor = model(x)
    return output.square().mean()


class Uneven(Deep):
    """The fifth layer is wider."""

    def __init__(self) -> None:
        super().__init__()
        self.layers[4] = nn.Sequential(nn.Linear(WIDTH, 9 * WIDTH), nn.ReLU(), nn.Linear(9 * WIDTH, WIDTH))


class Skips(Deep):
    """The output of every layer is used again at the end."""

    def forward(self, x: Tensor) -> Tensor:
        outputs = [self.first(x)]
        for layer in self.layers:
            outputs.append(layer(outputs[-1]))
        return self.head(torch.stack(outputs).square().sum(0))


class Alternating(Deep):
    """Layers that look alike, and of which the model lets every third do more."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for number, layer in enumerate(self.layers):
            x = x + (layer(layer(x)) if number % 3 == 2 else layer(x))
        return self.head(x)


class Cached(nn.Module):
    """A layer that keeps something in a cache, as attention keeps keys and values."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, cache: list[Tensor]) -> Tensor:
        x = self.layer(x)
        cache.append(x.detach().half())
        return x


class Caching(Deep):
    """Has a cache until the last layer is done, as language models of transformers have."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Cached(layer) for layer in self.layers)

    def forward(self, x: Tensor) -> Tensor:
        cache: list[Tensor] = []
        x = self.first(x)
        for layer in self.layers:
            x = layer(x, cache)
        return self.head(x)


class Insistent(Deep):
    """Does not work with fewer layers."""

    def forward(self, x: Tensor) -> Tensor:
        assert len(self.layers) == self.num_layers
        return super().forward(x)


class Chosen(Mlp):
    """Uses a few places of its widest tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(WIDTH, 40 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        wide = self.wide(super().forward(x))
        return wide[:, torch.arange(WIDTH)]


class Sliced(Mlp):
    """Uses slices of one large parameter, whose gradients are added up, and has a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.Parameter(torch.randn(16, WIDTH, WIDTH) / WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        for expert in self.experts[:2].unbind():
            x = x + x @ expert
        for number in range(2, 16):
            x = x + (x @ self.experts[number]).relu()
        return super().forward(x)


class Dropping(Deep):
    """Drops most layers of most steps at random, by numbers that ``draw`` returns."""

    def __init__(self, draw: Callable[[], float], rate: float) -> None:
        super().__init__()
        self.draw, self.rate = draw, rate

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            if self.draw() >= self.rate:
                x = x + layer(x)
        return self.head(x)


class OneOfTwo(nn.Module):
    """Each step uses one of two layers, of the number that ``choose`` returns."""

    def __init__(self, choose: Callable[[], int]) -> None:
        super().__init__()
        self.choose = choose
        layers = (nn.Sequential(nn.Linear(WIDTH, 40 * WIDTH), nn.Linear(40 * WIDTH, WIDTH)) for _ in range(2))
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers[self.choose()](x)
        return out


class Spare(Deep):
    """Has a parameter, larger than all others, that takes no part in the loss: no gradient, no states."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Parameter(torch.zeros(1000, WIDTH))


def measured(build: Callable[[], nn.Module], layout: Layout, micro_batch: int) -> int:
    """The peak of the third of three real steps."""
    measured_recipe = recipe(build)
    model = measured_recipe.build_model()
    model = apply_plan(model, measured_recipe.blocks(model), layout, None)
    optimizer = measured_recipe.optimizer(model, layout, None)
    num = 2 if layout.accumulate else 1

    def step() -> None:
        measured_recipe.train_step(model, optimizer, (make_batch(micro_batch) for _ in range(num)), num)

    step()
    step()
    gc.collect()
    return measure_peak(CPU, model, optimizer, step)


@pytest.mark.sample
@pytest.mark.parametrize("layout", [Layout(), Layout(recompute=True), SELECTIVE, Layout(accumulate=True)], ids=str)
def test_the_traced_peak_is_that_of_a_real_step(layout: Layout) -> None:
    curve = trace(recipe(), layout, 64).curve
    assert isinstance(curve, Envelope)
    for micro_batch in (2, 7, 200):
        assert curve.peak_bytes(micro_batch) == pytest.approx(measured(Mlp, layout, micro_batch), abs=TOLERANCE_BYTES)


@pytest.mark.sample
@pytest.mark.parametrize("micro_batch", [2, 500])
def test_gradients_of_one_tensor_are_added_up_in_place(micro_batch: int) -> None:
    peak_bytes = trace(recipe(Sliced), Layout(), micro_batch).curve.peak_bytes(micro_batch)
    assert peak_bytes == pytest.approx(measured(Sliced, Layout(), micro_batch), abs=TOLERANCE_BYTES)


@pytest.mark.parametrize("micro_batch", [3, 300])
def test_a_gradient_of_chosen_places_is_written_in_place(micro_batch: int) -> None:
    peak_bytes = trace(recipe(Chosen), Layout(), micro_batch).curve.peak_bytes(micro_batch)
    assert peak_bytes == pytest.approx(measured(Chosen, Layout(), micro_batch), abs=TOLERANCE_BYTES)


@pytest.mark.parametrize(
    ("draw", "layout"),
    [
        pytest.param(lambda: torch.rand([]).item(), Layout(), id="torch"),
        pytest.param(lambda: torch.empty(1).uniform_().item(), Layout(), id="torch, in place"),
        pytest.param(lambda: torch.bernoulli(torch.tensor(0.1)).item(), Layout(), id="0 or 1"),
        pytest.param(lambda: random.random(), Layout(), id="Python"),
        pytest.param(lambda: random.uniform(0, 1), Layout(), id="Python, a range"),
        pytest.param(lambda: np.random.uniform(0, 1), Layout(), id="numpy"),
        pytest.param(lambda: torch.rand([]).item(), Layout(dp_shard=2, recompute=True), id="torch, sharded"),
    ],
)
def test_a_model_that_drops_layers_is_predicted_for_a_step_that_keeps_them(
    draw: Callable[[], float], layout: Layout
) -> None:
    dropping, keeping = (trace(recipe(partial(Dropping, draw, rate)), layout, 16).curve for rate in (0.9, 0.0))
    assert dropping.peak_bytes(16) == pytest.approx(keeping.peak_bytes(16), abs=TOLERANCE_BYTES)


@pytest.mark.parametrize("layout", [Layout(), Layout(accumulate=True)], ids=str)
def test_layers_that_steps_use_in_turn_all_have_states_and_only_one_has_a_gradient(layout: Layout) -> None:
    curve = trace(recipe(partial(OneOfTwo, lambda: random.randrange(2))), layout, 4).curve
    in_turn = partial(OneOfTwo, partial(next, itertools.cycle([0, 1])))  # micro-batches of one step use both
    assert curve.peak_bytes(4) == pytest.approx(measured(in_turn, layout, 4), abs=2 * TOLERANCE_BYTES)


def test_experts_and_dropped_layers_are_predicted_for_a_step_that_keeps_them() -> None:
    def drops_and_chooses(rate: float) -> nn.Module:
        model = Dropping(lambda: random.random(), rate)
        model.first.register_forward_hook(lambda layer, args, out: out * (1 if out.argmax(-1)[0] >= 0 else 2))
        return model

    dropping, keeping = (trace(recipe(partial(drops_and_chooses, rate)), Layout(), 16) for rate in (0.9, 0.0))
    assert dropping.curve.peak_bytes(16) == pytest.approx(keeping.curve.peak_bytes(16), abs=TOLERANCE_BYTES)
    assert any(assumption.startswith("choices by the model are even") for assumption in keeping.assumptions)


def test_a_loop_that_waits_for_another_random_number_ends() -> None:
    def waits() -> float:
        while (number := random.random() + torch.rand([]).item()) in (0.0, 2 - 2 * 2.0**-24):
            pass
        return number

    assert trace(recipe(lambda: Dropping(waits, 0.9)), Layout(), 2).assumptions[-1] == "the largest of 5 random draws"


def test_a_single_sample_that_the_model_refuses_counts_as_two() -> None:
    curve = trace(recipe(), Layout(), 8).curve  # batch normalisation needs two
    assert curve.peak_bytes(1) == curve.peak_bytes(2)


def test_a_single_sample_is_traced_by_itself() -> None:
    curve = trace(recipe(Positions), Layout(), 16).curve
    assert isinstance(curve, Envelope)
    assert curve.peak_bytes(1) == pytest.approx(measured(Positions, Layout(), 1), abs=TOLERANCE_BYTES)


def test_a_model_that_is_not_affine_gets_a_table_of_traced_points() -> None:
    curve = trace(recipe(Similarities), Layout(), 50).curve
    assert isinstance(curve, PeakTable)
    assert [size for size, _ in curve.points] == [1, 2, 3, 4, 5, 8, 10, 16, 25, 32, 50]
    assert curve.peak_bytes(50) == pytest.approx(measured(Similarities, Layout(), 50), abs=TOLERANCE_BYTES)
    assert trace(recipe(Similarities), Layout(), 50).log is None


def in_16_bits() -> Any:
    """A classifier in bf16: oneDNN's products take scratch memory that is not affine in the micro-batch."""
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 100)).bfloat16()
    return model, lambda batch: torch.randn(batch, 128, 64, dtype=torch.bfloat16), squared


def recurrent() -> Any:
    """An LSTM: what oneDNN keeps for its backward pass is not affine in the micro-batch either."""

    class Lstm(nn.LSTM):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(x)[0]

    return Lstm(48, 144, batch_first=True), lambda batch: torch.randn(batch, 32, 48), squared


@pytest.mark.parametrize("function", [in_16_bits, recurrent])
def test_the_peak_of_every_micro_batch_that_a_plan_may_have_is_traced(function: Callable[[], Any]) -> None:
    made = recipe_of(FunctionWorkload(function, {"batch": 18}))
    curve = trace(made, Layout(), 18).curve
    for micro_batch in (1, 2, 3, 6, 9, 18):
        exact = trace_peak(made, Layout(), micro_batch).fixed_bytes
        assert exact <= curve.peak_bytes(micro_batch) <= exact * 1.001
    if function is in_16_bits:  # all but workspaces is affine
        assert curve.peak_bytes(7) == pytest.approx(trace_peak(made, Layout(), 7).fixed_bytes, rel=0.01)


@pytest.mark.parametrize("layout", [Layout(), Layout(accumulate=True), Layout(dp_shard=4, recompute=True)], ids=str)
@pytest.mark.parametrize("build", [Mlp, Positions, Deep])
def test_the_log_of_a_run_reaches_the_peak_of_every_micro_batch(build: Callable[[], nn.Module], layout: Layout) -> None:
    traced = trace(replace(recipe(build), device=CUDA), layout, 64)  # a log has no workspaces of a CPU's kernels
    assert traced.log is not None
    for micro_batch in (1, 2, 7, 200):
        reached = constant_peak(traced.log.run(micro_batch)).fixed_bytes
        assert reached == pytest.approx(traced.curve.peak_bytes(micro_batch), abs=TOLERANCE_BYTES)


def test_a_model_that_keeps_activations_is_not_believed_to_be_affine() -> None:
    assert isinstance(trace(recipe(Hoarder), Layout(), 4).curve, PeakTable)


def test_states_are_divided_by_sharding() -> None:
    traced = {ranks: trace(recipe(), Layout(dp_shard=ranks), 8) for ranks in (1, 2, 4)}
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in Mlp().buffers())
    steps = 4 * len(list(Mlp().parameters()))  # AdamW counts the steps of every parameter
    for ranks, trace_of_ranks in traced.items():
        assert trace_of_ranks.num_params == sum(parameter.numel() for parameter in Mlp().parameters())
        assert trace_of_ranks.state_bytes == 4 * 4 * trace_of_ranks.num_params // ranks + buffers + steps


@pytest.mark.parametrize(
    ("make", "ranks", "measured_mib"),
    [(linear, 4, 62.67), (embedding, 2, 74.17)],  # by torch's allocation hook in ranks on gloo
)
def test_gradients_whose_rows_the_ranks_do_not_divide_are_copied(
    make: Callable[[], Any], ranks: int, measured_mib: float
) -> None:
    recipe = recipe_of(FunctionWorkload(make, {}))
    peak_bytes = trace(recipe, Layout(dp_shard=ranks), 2).curve.peak_bytes(2)
    assert peak_bytes / MIB == pytest.approx(measured_mib, abs=0.01)


@pytest.mark.sample
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_peak_is_told_by_category(ranks: int) -> None:
    traced = trace(recipe(), Layout(dp_shard=ranks), 64)
    parts = traced.curve.parts(64)
    assert sum(parts.values()) == traced.curve.peak_bytes(64) and parts.keys() <= set(CATEGORIES)
    assert parts["parameters"] == 4 * traced.num_params // ranks
    assert parts["optimizer"] == 2 * parts["parameters"] + 4 * len(list(Mlp().parameters()))
    assert parts["buffers"] == sum(buffer.numel() * buffer.element_size() for buffer in Mlp().buffers())
    assert parts["batch"] == 2 * 64 * WIDTH * 4
    if ranks == 1:
        assert 0 < parts["gradients"] <= parts["parameters"]
        # Of each of the two layers at least the input, the output of the first product and that of the GELU are kept;
        # the peak is in the backward pass of the second, which has let go of one.
        assert parts["activations"] >= 64 * (2 * (1 + 4) + 4) * WIDTH * 4
    assert (parts.get("gathered", 0) > 0) == (ranks > 1)


def test_a_tensor_that_a_module_holds_without_registering_it_counts() -> None:
    class Masked(Mlp):
        def __init__(self) -> None:
            super().__init__()
            self.mask = torch.ones(1000, WIDTH)

    plain, masked = (trace(recipe(build), Layout(), 8).curve.parts(8) for build in (Mlp, Masked))
    assert masked == plain | {"buffers": plain["buffers"] + 4 * 1000 * WIDTH}


def test_shapes_of_whole_parameters_on_sharded_ranks_are_no_memory() -> None:
    """To infer shapes DTensor runs the operation on fake tensors of the global shape: here, of all parameters."""

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(16))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    def optimizer(model: nn.Module, *_: object) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), foreach=True)

    traced = trace(replace(recipe(Layers), optimizer=optimizer), Layout(dp_shard=64), 4)
    # A few of the 16 layers are whole at a time, and 1/64 of all states is here.
    assert traced.curve.peak_bytes(2) < 4 * traced.num_params / 2


LAYOUTS = [
    Layout(),
    Layout(recompute=True),
    Layout(accumulate=True),
    Layout(dp_shard=2),
    Layout(dp_shard=2, recompute=True, accumulate=True),
]
LAYOUTS += [SELECTIVE, Layout(dp_shard=2, dp_replicate=2), Layout(dp_replicate=2), Layout(dp_shard=2, reshard=False)]


@pytest.mark.sample
@pytest.mark.parametrize(
    ("build", "layout"),
    [
        *((Deep, layout) for layout in LAYOUTS),
        (Caching, Layout()),
        (Caching, Layout(dp_shard=2)),
        (Spare, Layout()),
        (Spare, Layout(recompute=True, accumulate=True)),
    ],
)
def test_a_few_equal_blocks_tell_of_all(build: type[Deep], layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    stretched = trace(recipe(build), layout, 16)
    assert stretched.equal_blocks and trace(recipe(build), layout, 16, equal_blocks=True) == stretched
    monkeypatch.setattr(opened, "TRACED_BLOCKS", Deep.num_layers)
    full = trace(recipe(build), layout, 16)
    assert not full.equal_blocks
    for size in (1, 2, 3, 16, 500):
        assert stretched.curve.parts(size) == full.curve.parts(size)
        assert stretched.curve.peak_bytes(size) == full.curve.peak_bytes(size)
    assert stretched.log is not None and full.log is not None
    held = [[log.sizes[place] for _, place in log.passes] for log in (stretched.log, full.log)]
    assert held[0] == held[1]  # bytes, and on which stream
    assert stretched.work == full.work
    assert (stretched.num_params, stretched.state_bytes) == (full.num_params, full.state_bytes)


@pytest.mark.parametrize(
    ("build", "layout"),
    [
        *((build, Layout()) for build in (Uneven, Skips, Alternating, Insistent)),
        *((build, Layout(dp_shard=2, recompute=True)) for build in (Skips, Spare)),
    ],
    ids=str,
)
def test_where_blocks_are_not_alike_the_whole_model_is_traced(
    build: type[Deep], layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced = trace(recipe(build), layout, 16)
    monkeypatch.setattr(opened, "TRACED_BLOCKS", Deep.num_layers)
    full = trace(recipe(build), layout, 16)
    assert traced == full


def test_blocks_that_know_their_position_alone_are_alike_and_those_of_other_settings_are_not() -> None:
    class Numbered(Deep):
        def __init__(self) -> None:
            super().__init__()
            for number, layer in enumerate(self.layers):
                layer.layer_idx = number  # type: ignore[assignment]

    class Fading(Deep):
        def __init__(self) -> None:
            super().__init__()
            for number, layer in enumerate(self.layers):
                layer.append(nn.Dropout(0.1 * number))  # type: ignore[operator]

    assert trace(recipe(Numbered), Layout(), 8).equal_blocks
    assert not trace(recipe(Fading), Layout(), 8).equal_blocks


@pytest.mark.parametrize(
    "layout", [Layout(dp_shard=2), Layout(dp_shard=2, accumulate=True), Layout(dp_shard=4, recompute=True)], ids=str
)
def test_sharded_layouts_are_affine_too(layout: Layout) -> None:
    curve = trace(recipe(), layout, 32).curve
    assert isinstance(curve, Envelope)
    other = trace(recipe(), layout, 9).curve
    assert [curve.peak_bytes(size) for size in (1, 2, 9, 32)] == [other.peak_bytes(size) for size in (1, 2, 9, 32)]


@pytest.mark.parametrize("layout", [Layout(), Layout(recompute=True), Layout(accumulate=True)], ids=str)
def test_a_single_rank_has_one_stream(layout: Layout) -> None:
    log = trace(recipe(Deep), layout, 8).log
    assert log is not None and log.streams(1) == log.streams(8) == {}


def test_recompute_trades_activations_for_flops() -> None:
    plain, recompute = (trace(recipe(), Layout(recompute=on), 512) for on in (False, True))
    assert recompute.curve.peak_bytes(512) < 0.75 * plain.curve.peak_bytes(512)
    assert recompute.work.per_sample.flops > plain.work.per_sample.flops


def test_selective_recompute_keeps_the_products_and_so_repeats_none() -> None:
    plain, selective, recomputed = (
        trace(recipe(), layout, 512) for layout in (Layout(), SELECTIVE, Layout(recompute=True))
    )
    peaks = [traced.curve.peak_bytes(512) for traced in (recomputed, selective, plain)]
    assert peaks == sorted(set(peaks))
    assert selective.work.per_sample.flops == plain.work.per_sample.flops


@pytest.mark.sample
def test_flops_are_those_of_the_matrix_products() -> None:
    products = 2 * 2 * WIDTH * 4 * WIDTH
    # 2 FLOPs for each weight forward, 4 backward; the first layer's input needs no gradient.
    assert trace(recipe(), Layout(), 8).work.per_sample.flops == 6 * products - 2 * WIDTH * 4 * WIDTH


def test_the_structure_is_that_of_the_memory_not_of_the_learning_rate() -> None:
    trace_of_model, same = trace(recipe(), Layout(), 8), trace(recipe(lr=0.5), Layout(), 8)
    other = trace(recipe(Positions), Layout(), 8)
    assert trace_of_model.structure == same.structure != other.structure


class Mixed(Deep):
    """Autocast frees its casts at its end, in an order that changes."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x).float()


def test_the_structure_is_the_same_in_every_trace() -> None:
    assert len({trace(recipe(Mixed), Layout(), 8).structure for _ in range(5)}) == 1


def test_a_trace_allocates_no_memory_for_the_model() -> None:
    class Huge(Mlp):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(WIDTH, 2**30, bias=False)  # 256 GiB, and as much again for gradients

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + functional.linear(self.up(x), self.up.weight.T)

    traced = trace(recipe(Huge), Layout(), 4)
    assert traced.curve.peak_bytes(1) > 2**40
    assert traced.curve.largest_batch(96 * MIB) == 0


def test_tracing_leaves_no_process_group_and_garbage_collection_on() -> None:
    with pytest.raises(RuntimeError, match="out of ideas"):
        trace(recipe(lambda: failing("out of ideas")), Layout(dp_shard=2), 4)
    assert not torch.distributed.is_initialized()
    assert gc.isenabled()


def failing(message: str) -> nn.Module:
    raise RuntimeError(message)


def test_an_update_after_passes_of_a_few_blocks_begins_with_the_loss_that_they_leave() -> None:
    def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[Any], num: int) -> None:
        for x, y in batches:
            loss = functional.mse_loss(model(x), y) / num
            loss.backward()
            del x, y
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    keeps_loss = replace(recipe(Deep), train_step=train_step)
    curves = [trace(keeps_loss, Layout(), 2, equal_blocks=equal_blocks).curve for equal_blocks in (None, False)]
    few, full = ([curve.peak_bytes(size) for size in (1, 2, 3)] for curve in curves)
    assert few == full
    assert full[1] == trace(recipe(Deep), Layout(), 2).curve.peak_bytes(2) + 4  # an update peaks
