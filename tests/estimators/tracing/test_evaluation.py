"""The peak of an evaluation, traced, against that of a real one."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn

from estimators.model import Layout
from estimators.peaks.envelope import Envelope, PeakTable
from estimators.tracing.tracer import trace
from tests.estimators.tracing.test_tracer import Skips
from tests.traced import WIDTH, Deep, Mlp, make_batch
from workloads.protocol import Batch, Workload
from workloads.sandbox.recipe import recipe_of
from workloads.training.memory.peak import measure_peak
from workloads.training.step import evaluate, train_step

CPU = torch.device("cpu")
NUM_CLASSES = 4000
TOLERANCE_BYTES = 4096


class Study(Workload):
    """Any model; its evaluation makes logits over many classes, which its steps do not."""

    num_train = num_eval = 1000
    model: Callable[[], nn.Module] = Mlp

    def build_model(self) -> nn.Module:
        return type(self).model()

    def train_batch(self, indices: Tensor) -> Batch:
        return make_batch(len(indices))

    def eval_batch(self, indices: Tensor) -> Batch:
        return make_batch(len(indices))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        logits = model(batch[0]).repeat(1, NUM_CLASSES // WIDTH)
        return {"score": logits.log_softmax(-1).amax(-1)}


class DeepStudy(Study):
    model = Deep


class SkipsStudy(Study):
    model = Skips


class Neighbours(Study):
    """Compares all samples with each other: not affine."""

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        x = model(batch[0])
        return {"score": torch.cdist(x, x).repeat(1, 50).amax(-1)}


class Banked(Study):
    """Computes a bank once, and keeps it."""

    bank: Tensor | None = None

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        if self.bank is None:
            self.bank = model(torch.randn(3000, WIDTH))
        return {"score": (model(batch[0]) @ self.bank.T).amax(-1)}


class WithNumpy(Study):
    """Leaves torch for a part of its metrics."""

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        outputs = model(batch[0]).cpu().numpy()
        more = super().evaluate(model, batch)
        return {**more, "spread": torch.from_numpy(outputs.std(-1))}


class Decides(Study):
    """Looks at a value after its largest tensors are gone."""

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        metrics = super().evaluate(model, batch)
        if metrics["score"].mean() > 0:
            return {"score": metrics["score"] * 2}
        return metrics


class PaddedEncoder(nn.Module):
    """torch's own encoder, with a mask of padding: its faster layers for evaluations look at the mask's values."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 2, 64, 0.0, batch_first=True), 2)

    def forward(self, x: Tensor) -> Tensor:
        sequences = x[:, None].expand(-1, 8, -1)
        padding = torch.arange(8) >= 5 + (torch.arange(len(x)) % 3)[:, None]
        encoded: Tensor = self.layers(sequences, src_key_padding_mask=padding)
        return encoded[:, 0]


class Padded(Study):
    model = PaddedEncoder


class Parts(DeepStudy):
    """Its evaluation calls a layer of the model, not the model."""

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        layer = next(module for module in model.modules() if isinstance(module, nn.Linear))
        return {"score": layer(batch[0]).amax(-1)}


def measured(workload: Workload, micro_batch: int) -> int:
    """The peak of the first real evaluation, after two steps."""
    model = workload.build_model()
    optimizer = workload.optimizer(model)

    def run() -> None:
        batches = (workload.eval_batch(torch.arange(micro_batch)) for _ in range(2))
        evaluate(workload, model, ((batch, torch.ones(micro_batch, dtype=torch.bool)) for batch in batches))

    for _ in range(2):
        train_step(workload, model, optimizer, [workload.train_batch(torch.arange(2))], 1)
    gc.collect()
    return measure_peak(CPU, model, optimizer, run)


@pytest.mark.sample
@pytest.mark.full
@pytest.mark.parametrize("kind", [Study, DeepStudy, SkipsStudy, Neighbours, Banked, WithNumpy, Decides, Padded])
def test_the_traced_peak_of_an_evaluation_is_that_of_a_real_one(kind: type[Study]) -> None:
    traced = trace(recipe_of(kind({})), Layout(), 16)
    assert traced.evaluation is not None
    assert isinstance(traced.evaluation, PeakTable if kind is Neighbours else Envelope)
    assert traced.equal_blocks == (kind is DeepStudy)
    for size in (1, 2, 8, 16):
        assert traced.evaluation.peak_bytes(size) == pytest.approx(
            measured(kind({}), size), rel=0.002, abs=TOLERANCE_BYTES
        )


def test_what_an_evaluation_keeps_is_added_to_the_steps() -> None:
    plain, keeps = (trace(recipe_of(kind({})), Layout(), 16) for kind in (Study, Banked))
    assert keeps.curve.peak_bytes(16) - plain.curve.peak_bytes(16) == 3000 * WIDTH * 4
    assert keeps.structure == plain.structure, "nothing of it is left for the next trace"


@pytest.mark.full
def test_an_evaluation_that_looks_at_values_is_predicted_as_far_as_it_can_be_and_says_so() -> None:
    (cut,) = trace(recipe_of(Decides({})), Layout(), 16).assumptions
    assert cut.startswith(
        "in evaluate, nothing is predicted after DataDependentOutputException: aten._local_scalar_dense"
    )
    (zeros,) = trace(recipe_of(WithNumpy({})), Layout(), 16).assumptions
    assert zeros.startswith("in evaluate, numbers that are taken out of tensors are 0 (test_evaluation.py:")
    assert not trace(recipe_of(Study({})), Layout(), 16).assumptions
    assert not trace(recipe_of(Padded({})), Layout(), 16).assumptions


@pytest.mark.full
def test_an_evaluation_that_a_plan_cannot_run_is_an_error_of_the_plan() -> None:
    assert trace(recipe_of(Parts({})), Layout(), 4).evaluation is not None
    with pytest.raises(RuntimeError, match=r"mixed torch\.Tensor and DTensor"):
        trace(recipe_of(Parts({})), Layout(dp_shard=2), 4)


@pytest.mark.full
def test_a_sharded_evaluation_gathers_again_what_steps_gather() -> None:
    alone, sharded = (trace(recipe_of(DeepStudy({})), Layout(dp_shard=degree), 16).evaluation for degree in (1, 2))
    assert alone is not None and sharded is not None
    states = [sum(curve.parts(8).get(name, 0) for name in ("parameters", "optimizer")) for curve in (alone, sharded)]
    assert states[1] == pytest.approx(states[0] / 2, rel=0.01)
    assert sharded.parts(8)["gathered"] > 0
    assert sharded.peak_bytes(8) - sharded.parts(8)["gathered"] < alone.peak_bytes(8)
