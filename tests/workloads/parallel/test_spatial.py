"""Ranks with slabs train the curve of one process, and refuse what they cannot divide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from estimators.model import Layout, Plan
from estimators.tracing.fake_gang import fake_mesh
from estimators.tracing.tracer import trace_peak
from workloads.loading import load_workload
from workloads.parallel.apply import apply_plan
from workloads.parallel.spatial import _batch_norm, _replace, slab
from workloads.protocol import Spatial
from workloads.sandbox.recipe import recipe_of

TOLERANCE = 1e-5

DENOISER = """
import torch
from torch import nn
from torch.nn import functional
from workloads.protocol import Spatial, Workload
from workloads.models.vit_digits import VitDigits

class Net(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.spatial = Spatial(dims=(2, 2), multiple_of=2)
        self.wide = nn.Conv2d(1, 8, 5, padding=2)
        # No bias before a normalisation: its gradient is rounding alone, which AdamW makes as large as any other.
        self.first = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), norm(8), nn.ReLU())
        self.shrink = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.low = nn.Sequential(nn.Conv2d(16, 16, 3, padding=2, dilation=2, bias=False), norm(16), nn.GELU())
        self.pool, self.upsample = nn.MaxPool2d(2), nn.Upsample(scale_factor=2)
        self.grow = nn.ConvTranspose2d(16, 8, 2, 2)
        self.last = nn.Conv2d(16, 1, 1)

    def forward(self, x):
        x = self.first(self.wide(self.upsample(x)))
        low = self.low(self.shrink(x))
        return self.last(self.pool(torch.cat([x, self.grow(low)], 1)))

class Denoiser(Workload):
    num_train, num_eval = 200, 13
    def build_model(self):
        norms = {"batch": nn.BatchNorm2d, "group": lambda width: nn.GroupNorm(4, width)}
        return Net(norms[self.params["norm"]])
    def images(self, indices):
        clean = VitDigits({}).train_batch(indices)[0].reshape(-1, 1, 8, 8)
        noise = torch.randn(1800, 1, 8, 8, generator=torch.Generator().manual_seed(0))[indices]
        return clean + 0.3 * noise, clean
    train_batch = eval_batch = images
    def loss(self, model, batch): return functional.mse_loss(model(batch[0]), batch[1])
    def evaluate(self, model, batch): return {"loss": (model(batch[0]) - batch[1]).square().mean((1, 2, 3))}
"""


@pytest.fixture
def denoiser(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "denoiser.py").write_text(DENOISER)
    return {"workload": "denoiser.py:Denoiser", "code_dir": str(tmp_path)}


@pytest.mark.parametrize(
    ("norm", "plan"),
    [
        ("batch", Plan(16, spatial=2)),
        pytest.param("group", Plan(8, 2, spatial=4), marks=pytest.mark.full),
        pytest.param("group", Plan(8, spatial=2, dp_shard=2, recompute=True), marks=pytest.mark.full),
        pytest.param("group", Plan(8, spatial=2, dp_replicate=2), marks=pytest.mark.full),
    ],
    ids=str,
)
def test_ranks_with_slabs_of_the_same_samples_train_the_curve_of_one_process(
    ranks: Any, denoiser: dict[str, Any], norm: str, plan: Plan
) -> None:
    expected_curve = ranks.curve(
        Plan(16 // plan.num_micro_batches, plan.num_micro_batches), params={"norm": norm}, **denoiser
    )
    curve = ranks.curve(plan, params={"norm": norm}, **denoiser)
    assert [step for step, _ in curve] == [step for step, _ in expected_curve]
    for (_, values), (_, expected) in zip(curve, expected_curve, strict=True):
        assert values == pytest.approx(expected, abs=TOLERANCE)
    assert expected_curve[-1][1]["loss"] < expected_curve[0][1]["loss"], "it learns"


def model(*layers: nn.Module, multiple_of: int = 1) -> nn.Module:
    network = nn.Sequential(*layers)
    network.spatial = Spatial(dims=(2, None), multiple_of=multiple_of)  # type: ignore[assignment]
    return network


def test_slabs_are_parts_of_what_is_divided_and_all_of_the_rest() -> None:
    images, labels = torch.arange(48.0).view(2, 1, 8, 3), torch.arange(2)
    parts = [slab(model(multiple_of=2), (images, labels), index, 4) for index in range(4)]
    assert torch.equal(torch.cat([part[0] for part in parts], 2), images)
    assert all(torch.equal(part[1], labels) for part in parts)
    assert parts[0][0].untyped_storage().nbytes() == images.nbytes // 4


@pytest.mark.parametrize(
    ("count", "batch", "message"),
    [
        (3, (torch.zeros(2, 1, 8), torch.zeros(2)), "8 cannot be divided into 3 slabs whose sizes are multiples of 2"),
        (8, (torch.zeros(2, 1, 8), torch.zeros(2)), "8 cannot be divided into 8 slabs"),
        (2, (torch.zeros(2, 1, 8),), "a batch has 1 tensors, but `spatial` names dimensions of 2"),
    ],
    ids=["uneven", "thin", "another batch"],
)
def test_samples_that_do_not_divide_are_refused(count: int, batch: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        slab(model(multiple_of=2), batch, 0, count)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nn.Linear(4, 4), r"0 \(Linear\) cannot work on slabs: only convolutions"),
        (nn.AdaptiveAvgPool2d(2), r"0 \(AdaptiveAvgPool2d\) cannot work on slabs"),
        (nn.AdaptiveAvgPool2d((1, None)), r"0 \(AdaptiveAvgPool2d\) cannot work on slabs"),
        (nn.AdaptiveMaxPool2d(1), r"0 \(AdaptiveMaxPool2d\) cannot work on slabs"),
        (nn.MaxPool2d(3, 2, 1), "kernel must be as large as its stride"),
        (nn.ConvTranspose2d(4, 4, 3, 2, 1), "kernel must be as large as its stride"),
        (nn.Upsample(scale_factor=2, mode="bilinear"), "mixes positions"),
        (nn.Conv2d(4, 4, 3, padding="same"), "padding must be a number of zeros"),
        (nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"), "padding must be a number of zeros"),
        (nn.Conv2d(4, 4, 1, stride=2), "skips positions"),
        (nn.Conv2d(4, 4, 3, padding=4), "pads more than its kernel reaches"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_layers_that_need_more_than_their_neighbours_are_refused(layer: nn.Module, message: str) -> None:
    layout = Layout(spatial=2)
    with fake_mesh(layout) as mesh, pytest.raises(ValueError, match=message):
        apply_plan(model(layer), [], layout, mesh)


def test_a_model_that_does_not_say_how_its_space_is_divided_is_refused() -> None:
    layout = Layout(spatial=2)
    with fake_mesh(layout) as mesh, pytest.raises(ValueError, match="give it an attribute `spatial`"):
        apply_plan(nn.Sequential(nn.Conv2d(1, 1, 1)), [], layout, mesh)


@pytest.mark.parametrize("affine", [True, False])
def test_a_batch_normalisation_over_all_slabs_is_torchs_own(affine: bool) -> None:
    torch.manual_seed(0)
    plain, divided = (nn.BatchNorm1d(3, affine=affine) for _ in range(2))
    with fake_mesh(Layout(spatial=2)):
        group = dist.new_group([0])
        _replace(divided, _batch_norm(divided, group))
        for _ in range(3):
            x = torch.randn(2, 3, 2)
            torch.testing.assert_close(divided(x), plain(x))
    torch.testing.assert_close(dict(divided.named_buffers()), dict(plain.named_buffers()))
    torch.testing.assert_close(divided.eval()(x), plain.eval()(x))


@pytest.mark.parametrize("fields", [{"tp": 2}, {"pp": 2, "num_micro_batches": 2}], ids=str)
def test_space_is_divided_beside_shards_and_replicas_alone(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="with dp_shard and dp_replicate only: use tp=1"):
        Plan(1, spatial=2, **fields)
    with pytest.raises(ValueError, match="zero1=false"):
        Plan(1, spatial=2, dp_replicate=2, zero1=True)


@pytest.mark.parametrize("axis", ["dp_shard", "dp_replicate"])
def test_ranks_of_one_slab_have_all_samples(axis: str) -> None:
    plan = Plan(1, 2, spatial=2, **{axis: 3})  # type: ignore[arg-type]
    assert (plan.world_size, plan.batch) == (6, 6)
    assert [plan.coordinate(rank, "spatial") for rank in range(6)] == [0, 0, 0, 1, 1, 1]
    assert [plan.data_rank(rank) for rank in range(6)] == [0, 1, 2, 0, 1, 2]


@pytest.mark.full
def test_replicas_of_slabs_may_hold_shards() -> None:
    workload = load_workload("unet3d_blobs", None)({"side": 16, "width": 8})
    plan = Plan(1, spatial=2, dp_replicate=2, dp_shard=2)
    held = [
        trace_peak(recipe_of(workload), layout, 1).parts_at(1)["optimizer"]
        for layout in (Plan(1, spatial=2, dp_replicate=2).layout, plan.layout)
    ]
    assert held[1] == pytest.approx(held[0] / 2, rel=0.01)


FROM_A_FILE = (
    DENOISER
    + """
import numpy as np

class FromAFile(Denoiser):
    reads_slabs = True
    def images(self, indices):
        file = np.load(self.params["file"], mmap_mode="r")
        read = np.stack([file[index, :, :, self.trial.slab.of(8)] for index in indices])
        with open(f"{self.params['file']}.{self.trial.rank}", "a") as log:
            print(read.nbytes // len(read), file=log)
        noisy, clean = torch.from_numpy(read).unbind(1)
        return noisy, clean
    train_batch = eval_batch = images
"""
)


@pytest.mark.full
def test_ranks_read_their_slab_of_a_file_alone(ranks: Any, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(FROM_A_FILE)
    file = tmp_path / "volumes.npy"
    np.save(file, np.random.default_rng(0).random((213, 2, 1, 8, 8), np.float32))
    options = {"workload": "own.py:FromAFile", "code_dir": str(tmp_path), "steps": 4}
    options["params"] = {"batch": 8, "norm": "group", "file": str(file)}
    expected, of_rank = dict(ranks.curve(Plan(8), **options)), [Path(f"{file}.{rank}") for rank in range(2)]
    assert set(of_rank[0].read_text().split()) == {"512"}, "bytes of a sample"
    of_rank[0].unlink()
    for step, values in ranks.curve(Plan(8, spatial=2), **options):
        assert values == pytest.approx(expected[step], abs=TOLERANCE)
    assert all(set(log.read_text().split()) == {"256"} for log in of_rank)
