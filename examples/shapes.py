"""Five models of different shapes, for a study in which each gets a plan of its own (``shapes.yaml``).

Every one of them is a built-in workload that says how it can be divided: the GPT is a ``Chain`` of blocks with a
``Split``, the 3D U-Net is ``Spatial``. A model of your own says it in the same way: see docs/workloads.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from scamp import Batch, StdlibGpt, Unet3dBlobs, Workload

SHAPES: dict[str, tuple[type[Workload], dict[str, Any]]] = {
    "small": (StdlibGpt, {"depth": 2, "width": 64, "batch": 16}),
    "wide layers": (StdlibGpt, {"depth": 1, "width": 1024, "heads": 8, "context": 32, "batch": 4}),
    "many layers": (StdlibGpt, {"depth": 20, "width": 208, "heads": 1, "context": 32, "batch": 6}),
    "long context": (StdlibGpt, {"depth": 6, "width": 64, "context": 4096, "batch": 2}),
    "large volumes": (Unet3dBlobs, {"side": 48, "width": 16, "batch": 1}),
}


class Shapes(Workload):
    """The model named by ``shape``; every other parameter is its own. Metric: ``loss``."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__(params)
        kind, sizes = SHAPES[params["shape"]]
        self.inner = kind({**sizes, **params})
        self.default_batch = sizes["batch"]

    @property
    def num_train(self) -> int:
        return self.inner.num_train

    @property
    def num_eval(self) -> int:
        return min(4, self.inner.num_eval)

    def build_model(self) -> nn.Module:
        return self.inner.build_model()

    def train_batch(self, indices: Tensor) -> Batch:
        return self.inner.train_batch(indices)

    def eval_batch(self, indices: Tensor) -> Batch:
        return self.inner.eval_batch(indices)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return self.inner.loss(model, batch)

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        return {"loss": self.inner.evaluate(model, batch)["loss"]}

    def optimizer(self, model: nn.Module) -> Optimizer:
        return self.inner.optimizer(model)

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        return self.inner.blocks(model)

    def on_step(self, step: int, steps: int, optimizer: Optimizer) -> None:
        self.inner.on_step(step, steps, optimizer)
