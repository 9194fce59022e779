"""Examples on the page of workloads do what the page says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import BaseModel
from torch import nn

from estimators.axes import Spread
from estimators.model import Plan
from scamp_service.study.predicted import PredictedBounds
from scamp_service.study.spec import StudySpec
from workloads import debug
from workloads.loading import load_workload
from workloads.parallel.divisions import divisions_of
from workloads.parallel.tp_plan.notation import described, split_outside
from workloads.sandbox.split_check import difference_of_parts
from workloads.training.updates.schedules import Schedules

PAGES = Path(__file__).parents[2] / "docs"


def options(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        inner: Any = field.annotation
        is_part = isinstance(inner, type) and issubclass(inner, BaseModel)
        if is_part and inner is not PredictedBounds:  # which has its own page
            yield from options(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def code(page: str, file: str) -> str:
    blocks: list[str] = re.findall(r"```python\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)
    (block,) = (block for block in blocks if file in block.splitlines()[0])
    return block


@pytest.mark.full
def test_the_example_on_the_page_trains_and_learns_on_two_ranks(ranks: Any, tmp_path: Path) -> None:
    (tmp_path / "spirals.py").write_text(code("workloads.md", "spirals.py"))
    curve = ranks.curve(
        Plan(50, dp_shard=2, recompute=True),
        steps=100,
        report_every=100,
        workload="spirals.py:Spirals",
        code_dir=str(tmp_path),
        params={"depth": 2, "width": 32, "lr": 1e-2},
        metrics=["accuracy"],
    )
    assert curve[-1][1]["accuracy"] > 0.75  # chance is a third


def test_the_three_hints_on_the_page_ask_for_the_plan_that_it_describes(tmp_path: Path) -> None:
    (tmp_path / "hinted_gpt.py").write_text(code("parallel.md", "hinted_gpt.py"))
    workload = load_workload("hinted_gpt.py:HintedGpt", tmp_path)({})
    model = workload.build_model()
    constraints = divisions_of(model, workload.blocks(model), workload.train_batch(torch.arange(1))).constraints
    assert constraints.allow(Spread(dp_shard=2, pp=2, tp=2)) and constraints.least_ranks == 8
    assert not any(constraints.allow(way) for way in (Spread(), Spread(dp_shard=8), Spread(dp_shard=4, tp=2)))
    assert [number for number in (2, 4, 8) if constraints.allow_micro_batches(number)] == [4]


def test_the_model_on_the_page_is_divided_by_the_names_of_its_layers(tmp_path: Path) -> None:
    (tmp_path / "named_gpt.py").write_text(code("parallel.md", "named_gpt.py"))
    workload = load_workload("named_gpt.py:NamedGpt", tmp_path)({"heads": 4, "width": 32})
    model: Any = described(workload, workload.build_model())
    assert model.blocks[0].split.columns == ("attention.qkv", "feed_forward.up")
    outside = split_outside(model)
    assert outside is not None and dict(outside.others) == {
        "characters": "embedding_rowwise",
        "head": "colwise_gather_output",
    }
    assert difference_of_parts(workload, 2) == ""


def test_the_page_has_one_row_for_each_option_of_a_study() -> None:
    (section,) = re.findall(r"^# The study file\n(.*?)^## ", (PAGES / "study.md").read_text(), re.DOTALL | re.MULTILINE)
    assert re.findall(r"^\| `([a-z_.]+)` \|", section, re.MULTILINE) == list(options(StudySpec))


@pytest.mark.sample
@pytest.mark.full
@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("sam.py", "Sam"),
        ("walk.py", "Walk"),
        ("pinn.py", "Pinn"),
        ("preferences.py", "Preferences"),
        ("mixture.py", "Mixture"),
        ("folds.py", "Fold"),
        ("folds.py", "Folds"),
        ("per_epoch.py", "PerEpoch"),
        ("diffusion.py", "Diffusion"),
    ],
)
def test_a_recipe_on_the_page_trains_in_micro_batches_and_no_study_refuses_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, name: str
) -> None:
    (tmp_path / "spirals.py").write_text(code("workloads.md", "spirals.py"))
    (tmp_path / file).write_text(code("updates.md", file))
    options = [f"{tmp_path}/{file}:{name}", "--steps", "4", "--report-every", "2"]
    debug.main([*options, "--plan", "micro_batch=8,num_micro_batches=4"])
    captured = capsys.readouterr()
    assert not captured.err
    divided_losses = re.findall(r"^step .*train_loss (\S+)$", captured.out, re.M)
    debug.main(options)
    losses = re.findall(r"^step .*train_loss (\S+)$", capsys.readouterr().out, re.M)
    assert len(divided_losses) == 2
    tolerance = 0.05 if name == "Mixture" else 1e-4  # which accepts that each micro-batch has its own balance
    assert list(map(float, divided_losses)) == pytest.approx(list(map(float, losses)), rel=tolerance)


def test_two_steps_of_the_optimizer_on_the_page_are_one_of_sam(tmp_path: Path) -> None:
    (tmp_path / "spirals.py").write_text(code("workloads.md", "spirals.py"))
    (tmp_path / "sam.py").write_text(code("updates.md", "sam.py"))
    workload = load_workload("sam.py:Sam", tmp_path)({"lr": 0.1, "rho": 0.2})
    weights = nn.Linear(3, 1, bias=False)
    start = weights.weight.detach().clone()
    optimizer = workload.optimizer(weights)
    for _ in range(2):
        optimizer.zero_grad()
        weights.weight.pow(4).sum().backward()
        optimizer.step()
    gradient = 4 * start**3
    ascended = start + 0.2 * gradient / gradient.norm()
    torch.testing.assert_close(weights.weight.detach(), start - 0.1 * 4 * ascended**3)
    order = torch.as_tensor(workload.order(0, torch.Generator())).view(-1, 2, workload.default_batch)
    assert torch.equal(order[:, 0], order[:, 1])


def test_the_plateau_on_the_page_lowers_the_rate_and_is_stored(tmp_path: Path) -> None:
    for page, name in (("workloads.md", "spirals.py"), ("updates.md", "plateau.py")):
        (tmp_path / name).write_text(code(page, name))
    workload = load_workload("plateau.py:Plateau", tmp_path)({"depth": 1, "width": 16})
    optimizer = workload.optimizer(workload.build_model())
    schedules = Schedules(workload, optimizer, 20)
    optimizer.step()
    for _ in range(2):
        schedules.step()
    before = optimizer.param_groups[0]["lr"]
    for _ in range(5):
        workload.on_evaluate({"loss": 1.0})
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.3 * before) and before == pytest.approx(1e-3)
    assert len(schedules.state()) == 2
