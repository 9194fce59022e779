"""One rank updates as a plain loop of torch does, so that equal curves of plans are not equally wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import MultiStepLR
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn

from estimators.model import Candidate, Layout, Plan
from scamp.workload.seeds import seed_everything
from tests.workloads.one_rank import Collected
from workloads.loading import load_workload
from workloads.protocol import Workload
from workloads.training.attempt.job import TrainingJob
from workloads.training.checkpoints.checkpoint import load_weights
from workloads.training.checkpoints.name import CheckpointName
from workloads.training.runtime import train
from workloads.training.samples import batch_indices
from workloads.training.step import evaluate
from workloads.training.updates.update import make_optimizer, updates_of

FOLDER = Path(__file__).parents[4] / "benchmarks" / "features" / "workloads"
NAME, COMPLEX, STEPS, BATCH = "sequences.py:Sequences", "turned.py:Turned", 5, 16
BASE: dict[str, Any] = {"optimizer": "SGD", "lr": 0.5}


def trained(params: dict[str, Any], folder: Path, name: str = NAME) -> dict[str, float]:
    reporter = Collected(None)
    job = TrainingJob(
        Candidate(name, None, params), FOLDER, Plan(BATCH), 0, STEPS, STEPS, None, folder, 1, None, ["loss"]
    )
    assert train(job, 0, 1, None, reporter) == "done"
    return dict(reporter.reports[-1][1])


def losses(workload: Workload, model: nn.Module, batch: Any) -> Tensor:
    """The loss of each sample."""
    measured = workload.evaluate(model, batch)
    assert isinstance(measured, Mapping)
    return measured["loss"].double()


def plain(params: dict[str, Any], kind: torch.dtype | None = None, name: str = NAME) -> float:
    """The held-out loss after a loop as people write it."""
    torch.set_num_threads(1)
    workload = load_workload(name, FOLDER)(params)
    seed_everything(0)
    model = workload.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = MultiStepLR(optimizer, [1, 3], 0.3) if "schedule" in params else None
    # torch's scaler takes no complex numbers on CPUs; without it some gradients round differently.
    scaler = torch.amp.GradScaler("cpu", enabled=kind is torch.float16 and name != COMPLEX)
    averaged = AveragedModel(model, avg_fn=get_ema_avg_fn(0.5)) if "ema_decay" in params else None
    if averaged is not None:
        averaged.update_parameters(model)  # its first call copies the weights
    for step in range(STEPS):
        batch = workload.train_batch(batch_indices(workload.num_train, BATCH, step, 0))
        with torch.autocast("cpu", kind or torch.bfloat16, enabled=kind is not None):
            loss = workload.loss(model, batch)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        for parameter in model.parameters():  # torch clips no conjugates that it has only noted
            parameter.grad = parameter.grad if parameter.grad is None else parameter.grad.resolve_conj()
        if "clip_norm" in params:
            nn.utils.clip_grad_norm_(model.parameters(), params["clip_norm"])
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if scheduler is not None:
            scheduler.step()
        if averaged is not None:
            averaged.update_parameters(model)
    held_out = workload.eval_batch(torch.arange(workload.num_eval))
    with torch.no_grad(), torch.autocast("cpu", kind or torch.bfloat16, enabled=kind is not None):
        shown: nn.Module = averaged.module if averaged is not None else model
        return float(losses(workload, shown, held_out).mean())


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"clip_norm": 0.3}, None),
        ({"schedule": "steps"}, None),
        ({"ema_decay": 0.5, "clip_norm": 0.3, "schedule": "steps"}, None),
        ({"precision": "bf16"}, torch.bfloat16),
        ({"precision": "fp16", "clip_norm": 0.3}, torch.float16),
    ],
    ids=str,
)
def test_one_rank_updates_as_a_plain_loop_does(tmp_path: Path, more: dict[str, Any], kind: torch.dtype | None) -> None:
    loss = trained({**BASE, **more}, tmp_path)["loss"]
    assert loss == pytest.approx(plain({**BASE, **more}, kind), abs=1e-6 if kind is None else 1e-4)
    assert abs(loss - trained(BASE, tmp_path / "without")["loss"]) > (1e-3 if kind is None else 1e-7)


@pytest.mark.parametrize(
    ("more", "kind"),
    [({"ema_decay": 0.5, "clip_norm": 0.3}, None), ({"precision": "fp16", "clip_norm": 0.3}, torch.float16)],
    ids=str,
)
def test_complex_parameters_are_averaged_clipped_and_scaled_as_by_torch(
    tmp_path: Path, more: dict[str, Any], kind: torch.dtype | None
) -> None:
    loss = trained({**BASE, **more}, tmp_path, COMPLEX)["loss"]
    assert loss == pytest.approx(plain({**BASE, **more}, kind, COMPLEX), abs=1e-6 if kind is None else 1e-4)


def kept_at(warmup: str, num_updates: int) -> float:
    """The share that an average keeps in an update, counted from 1."""
    step = num_updates - 1  # `get_decay` of diffusers' EMAModel and of timm's ModelEmaV3, with their defaults
    if step <= 0:
        return 0.0
    current = 1 - (1 + step / 1.0) ** -(2 / 3) if warmup == "power" else (1 + step) / (10 + step)
    return min(current, 0.9)


@pytest.mark.parametrize(
    ("more", "use_buffers"),
    [
        ({"ema_decay": 0.9, "ema_warmup": "copy", "average_buffers": True}, True),
        ({"ema_decay": 0.9, "ema_warmup": "copy"}, False),
        ({"ema_decay": 0.9, "ema_warmup": "ratio", "average_buffers": True}, True),
        ({"ema_decay": 0.9, "ema_warmup": "power"}, False),
        ({"swa_start": 0, "average_buffers": True}, True),
    ],
    ids=str,
)
def test_averages_warm_up_and_have_buffers_as_those_of_libraries(
    tmp_path: Path, more: dict[str, Any], use_buffers: bool
) -> None:
    torch.set_num_threads(1)
    workload = load_workload("centred.py:Centred", FOLDER)({**BASE, **more})
    seed_everything(0)
    model = workload.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def blended(average: Tensor, present: Tensor, num_averaged: Tensor | int) -> Tensor:
        if "swa_start" in more:
            return average + (present - average) / (num_averaged + 1)
        warmup = more["ema_warmup"]
        kept = 0.9 if warmup == "copy" else kept_at(warmup, int(num_averaged) + 1)
        return kept * average + (1 - kept) * present if present.is_floating_point() else present

    averaged = AveragedModel(model, avg_fn=blended, use_buffers=use_buffers)
    for step in range(STEPS):
        workload.loss(model, workload.train_batch(batch_indices(workload.num_train, BATCH, step, 0))).backward()
        optimizer.step()
        optimizer.zero_grad()
        averaged.update_parameters(model)
    held_out, shown = workload.eval_batch(torch.arange(workload.num_eval)), averaged.module.eval()
    with torch.no_grad():
        expected = float(losses(workload, shown, held_out).mean())
    assert trained({**BASE, **more}, tmp_path, "centred.py:Centred")["loss"] == pytest.approx(expected, abs=1e-6)
    weights = load_weights(CheckpointName(1, STEPS).folder(tmp_path)).state
    for name, tensor in shown.state_dict().items():
        assert torch.allclose(weights[name], tensor, atol=1e-6), name


def test_swa_is_the_mean_of_the_weights_from_its_start_on_and_evaluation_gives_them_back() -> None:
    workload = load_workload(NAME, FOLDER)({**BASE, "swa_start": 2})
    model = workload.build_model()
    optimizer = make_optimizer(workload, model, Layout(), None, STEPS)
    weight, seen = next(model.parameters()), []
    for step in range(STEPS):
        updates_of(model).step = step
        workload.loss(model, workload.train_batch(torch.arange(BATCH))).backward()
        optimizer.step()
        seen.append(weight.detach().clone())
    averages = updates_of(model).averages
    assert averages is not None
    assert torch.allclose(averages.of[weight], torch.stack(seen[2:]).mean(0), atol=1e-6)
    held_out = workload.eval_batch(torch.arange(4))
    sums = evaluate(workload, model, [(held_out, torch.ones(4, dtype=torch.bool))])
    assert torch.equal(weight, seen[-1])
    own_loss = float(losses(workload, model, held_out).detach().sum())
    assert float(sums.of(["loss"])[0]) != pytest.approx(own_loss, abs=1e-6)


def test_fp16_skips_an_update_that_overflows_and_halves_the_scale() -> None:
    workload = load_workload(NAME, FOLDER)({**BASE, "precision": "fp16"})
    model = workload.build_model()
    optimizer = make_optimizer(workload, model, Layout(), None, STEPS)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, float("inf"))
    optimizer.step()
    scale = updates_of(model).loss_scale
    assert scale is not None
    assert scale.scale == 2.0**15
    assert scale.num_good == 0
    assert all(torch.equal(parameter, other) for parameter, other in zip(before, model.parameters(), strict=True))
