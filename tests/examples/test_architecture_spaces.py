"""The examples of architecture search: the supernet computes every candidate, and children begin as their parents."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from scamp_service.model import Sized
from scamp_service.sizing.sizer import ProcessSizer
from scamp_service.study.parse import parse_study
from scamp_service.study.spaces.slots import is_candidate, slots_of
from scamp_service.study.user_code.bundling import bundle_code
from tests.sizing import MemoryBlobs, Sizing
from workloads.loading import load_workload
from workloads.protocol import Workload

EXAMPLES = Path(__file__).parents[2] / "examples"
SPECS = {name: parse_study((EXAMPLES / f"{name}.yaml").read_text()) for name in ("vit_space", "cells")}
BLOCKS = [{"heads": 1, "mlp_ratio": 1}, {"heads": 2, "mlp_ratio": 2}]
EDGES = [{"op": op} for op in ("conv3", "skip", "pool", "conv1", "conv3", "none")]


def model_of(name: str, params: Mapping[str, Any], seed: int = 0) -> tuple[Workload, nn.Module]:
    """A workload and its model, whose weights are not the initial ones."""
    torch.manual_seed(seed)
    workload = load_workload(SPECS[name].workload, EXAMPLES)(params)
    model = workload.build_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return workload, model


def losses(workload: Workload, model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        measured = workload.evaluate(model, workload.eval_batch(torch.arange(60)))
    assert isinstance(measured, Mapping)
    return measured["loss"]


@pytest.mark.parametrize(
    ("name", "parent", "child"),
    [
        ("vit_space", {"patch": 4, "width": 32, "blocks": BLOCKS}, {"patch": 4, "width": 64, "blocks": BLOCKS}),
        (
            "vit_space",
            {"patch": 2, "width": 32, "blocks": BLOCKS},
            {"patch": 2, "width": 96, "blocks": [{"heads": 4, "mlp_ratio": 4}, *BLOCKS[1:], *BLOCKS]},
        ),
        ("cells", {"width": 8, "depth": 1, "edges": EDGES}, {"width": 8, "depth": 2, "edges": EDGES}),
        ("cells", {"width": 8, "depth": 1, "edges": EDGES}, {"width": 24, "depth": 2, "edges": EDGES}),
    ],
)
def test_a_wider_and_deeper_child_begins_with_the_function_of_its_parent_and_learns_another(
    name: str, parent: dict[str, Any], child: dict[str, Any]
) -> None:
    before, trained = model_of(name, parent)
    workload, model = model_of(name, child, seed=1)
    assert (losses(workload, model) - losses(before, trained)).abs().max() > 1e-2
    workload.inherit(model, trained, parent)
    assert (losses(workload, model) - losses(before, trained)).abs().max() < 1e-5
    for parameter in model.parameters():
        parameter.grad = None
    workload.loss(model, workload.train_batch(torch.arange(60))).backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer.step()
    if child["width"] > parent["width"]:
        first = next(parameter for parameter in model.parameters() if parameter.shape[0] == child["width"]).flatten(1)
        units, other = first[: parent["width"]], first[parent["width"] : 2 * parent["width"]]
        assert not torch.allclose(units, other, atol=1e-6), "copies of a unit part as they train"


@pytest.mark.parametrize("name", ["vit_space", "cells"])
def test_a_candidate_that_inherits_from_the_supernet_is_the_part_that_the_supernet_computes(name: str) -> None:
    _, supernet = model_of(name, {"supernet": True})
    slots, draws = slots_of(SPECS[name].space), random.Random(0)
    candidate = load_workload(SPECS[name].workload, EXAMPLES).build_model.__globals__["candidate"]
    for number in (0, 1, 0.5, 0.5, 0.5, 0.5):
        params = candidate(number, draws)
        assert is_candidate(slots, params)
        workload, model = model_of(name, params)
        workload.inherit(model, supernet, {"supernet": True})
        images, _ = workload.eval_batch(torch.arange(20))
        with torch.no_grad():
            assert torch.allclose(model(images), supernet(images, params), atol=1e-5)


@pytest.mark.soak
@pytest.mark.usefixtures("warm_traces")
def test_some_vision_transformers_are_larger_than_a_device(tmp_path: Path) -> None:
    spec = SPECS["vit_space"]
    blobs = MemoryBlobs()
    sizer = ProcessSizer(blobs, tmp_path)
    code = blobs.put(bundle_code(EXAMPLES / "vit_space.yaml", spec.workload))
    try:
        screened = [
            Sizing(sizer).size({**spec.fixed, **start}, workload=spec.workload, code=code) for start in spec.start_with
        ]
    finally:
        sizer.close()
    small, large = (candidate for candidate in screened if isinstance(candidate, Sized))
    assert small.plan.world_size == 1
    assert large.plan.world_size > 1
    assert large.prediction.reserved_mib <= 96


def test_the_example_on_the_page_keeps_the_function() -> None:
    class Layer(nn.Module):
        def __init__(self, hidden: int) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(4, hidden), nn.Linear(hidden, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(self.up(x).relu())

    class Net(nn.Module):
        def __init__(self, hidden: int, depth: int) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Layer(hidden) for _ in range(depth))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.Sequential(*self.layers)(x)

    page = (EXAMPLES.parent / "docs" / "architecture-search.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    mine = type("Whole", (names["Mine"],), dict.fromkeys(Workload.__abstractmethods__))
    model, parent, x = Net(8, 3), Net(5, 2), torch.randn(6, 4)
    mine({"hidden": 8}).inherit(model, parent, {"hidden": 5})
    assert torch.allclose(model(x), parent(x), atol=1e-6)
