"""The adapters: their examples train the same curve under every plan, and say what they cannot do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from estimators.model import MIB, Layout, Plan
from workloads.adapters.arguments import arguments_for
from workloads.loading import load_workload
from workloads.refusals import WorkloadError
from workloads.sandbox.batch_check import why_whole
from workloads.training.updates.update import make_optimizer, updates_of

EXAMPLES = Path(__file__).parents[3] / "examples"
NAMED = EXAMPLES.parent / "benchmarks" / "features" / "workloads"
TOLERANCE = 1e-5
TRAINED: dict[str, dict[str, Any]] = {
    "from_function.py:Digits": {"width": 32},
    "lightning_digits.py:LightningDigits": {"width": 32, "lr": 1e-2},
    "texts.py:TextsWithLora": {"width": 32, "layers": 2, "rank": 2, "lr": 1e-2},
    "texts.py:Texts": {"width": 32, "layers": 2, "lr": 1e-3},
}
PLANS = [Plan(8, 2, dp_shard=2), Plan(16, 1, dp_replicate=2, zero1=True)]


@pytest.mark.sample
@pytest.mark.full
@pytest.mark.parametrize("name", TRAINED)
def test_examples_train_the_same_curve_under_every_plan(ranks: Any, name: str) -> None:
    options = {"workload": name, "code_dir": str(EXAMPLES), "params": TRAINED[name], "metric": _metric(name)}
    single = ranks.curve(Plan(32), **options)
    for plan in PLANS:
        curve = ranks.curve(plan, **options)
        for (step, values), (expected_step, expected) in zip(curve, single, strict=True):
            assert step == expected_step and values == pytest.approx(expected, rel=TOLERANCE, abs=TOLERANCE), str(plan)


@pytest.mark.full
def test_a_model_of_experts_trains_the_same_curve_by_its_own_tp_plan(ranks: Any) -> None:
    """It has every kind of style but latent keys; its checkpoint has packed weights in pieces."""
    options = {"workload": "named.py:Mixture", "code_dir": str(NAMED), "params": {"lr": 1e-3, "batch": 8}}
    options["metric"] = "loss"
    single = ranks.curve(Plan(8), steps=2, **options)
    curve = ranks.curve(Plan(8, tp=2), steps=2, **options)
    for (_, values), (_, expected) in zip(curve, single, strict=True):
        assert values == pytest.approx(expected, rel=TOLERANCE)


BUCKETS = """
import torch
from transformers import AutoModelForSequenceClassification, DistilBertConfig
from workloads.adapters.transformers import TransformersWorkload


class Buckets(TransformersWorkload):
    model_class = AutoModelForSequenceClassification

    def config(self):
        return DistilBertConfig(vocab_size=256, dim=64, n_layers=2, n_heads=4, hidden_dim=128)

    def dataset(self, split):  # 40 lengths, 8 samples of each
        return [{"input_ids": [1 + place % 200] * (8 + place // 8), "labels": place % 2} for place in range(320)]

    def order(self, epoch, generator):
        buckets = torch.arange(self.num_train).view(-1, 8)
        return buckets[torch.randperm(len(buckets), generator=generator)].flatten()
"""


@pytest.mark.full
def test_buckets_of_lengths_in_bf16_train_in_what_is_predicted_for_the_longest(ranks: Any, tmp_path: Path) -> None:
    """Libraries import parts of themselves where the model is made, and keep more for each length."""
    (tmp_path / "buckets.py").write_text(BUCKETS)
    params = {"precision": "bf16", "batch": 8}
    options = {"workload": "buckets.py:Buckets", "code_dir": str(tmp_path), "params": params, "metric": "accuracy"}
    (answer,) = ranks.train(Plan(8), steps=44, report_every=44, budget_bytes=9 * MIB, **options)
    assert answer["error"] == "", answer["message"]


def _metric(name: str) -> str:
    return "val_f1" if "lightning" in name else "accuracy"


def test_token_labels_are_padded_and_each_sample_counts_once() -> None:
    from transformers import AutoModelForCausalLM, LlamaConfig

    from workloads.adapters.transformers import IGNORED, TransformersWorkload

    class Language(TransformersWorkload):
        model_class = AutoModelForCausalLM

        def config(self) -> LlamaConfig:
            return LlamaConfig(
                vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
            )

        def dataset(self, split: str) -> list[dict[str, list[int]]]:
            return [{"input_ids": ids, "labels": ids} for ids in ([1, 2, 3, 4, 5], [7, 8])]

    workload = Language({})
    torch.manual_seed(0)
    model = workload.build_model()
    both = workload.train_batch(torch.arange(2))
    assert workload.lengths("train") == [5, 2]
    assert both["labels"][1].tolist() == [7, 8, *3 * [IGNORED]] and both["attention_mask"][1].tolist() == [
        1,
        1,
        0,
        0,
        0,
    ]
    total, count = workload.loss(model, both)
    assert (total / count).item() == pytest.approx(model(**both).loss.item(), rel=1e-5)
    assert why_whole(workload) == ""
    measured = workload.evaluate(model, both)
    assert isinstance(measured, Mapping)
    totals, counts = measured["loss"]
    alone = [model(**workload.train_batch(torch.tensor([index]))).loss.item() for index in range(2)]
    assert (totals / counts).tolist() == pytest.approx(alone, rel=1e-5) and counts.tolist() == [4, 1]


@pytest.mark.full
def test_weights_of_a_local_folder_are_copied_also_below_an_adapter(tmp_path: Path) -> None:
    workload_class = load_workload("texts.py:TextsWithLora", EXAMPLES)

    class Tuned(workload_class):  # type: ignore[misc, valid-type]
        pretrained = str(tmp_path)

    params = TRAINED["texts.py:TextsWithLora"]
    saved: Any = load_workload("texts.py:Texts", EXAMPLES)(params).build_model()
    saved.save_pretrained(tmp_path)
    workload = Tuned(params)
    model = workload.build_model()
    workload.load_weights(model)
    batch = workload.eval_batch(torch.arange(4))
    with torch.no_grad():
        assert torch.equal(model.eval()(**batch).logits, saved.eval()(**batch).logits), "an adapter begins as nothing"


def test_a_function_gets_the_parameters_that_it_names() -> None:
    def build(width: int, depth: int = 2) -> None: ...

    def take_all(first: int, **params: Any) -> None: ...

    assert arguments_for(build, {"width": 3, "lr": 0.1}) == {"width": 3}
    assert arguments_for(take_all, {"width": 3, "lr": 0.1}, num_given=1) == {"width": 3, "lr": 0.1}
    with pytest.raises(ValueError, match="needs a parameter width, which the study does not give"):
        arguments_for(build, {"lr": 0.1})


def test_what_only_a_trainer_can_do_is_refused() -> None:
    base: Any = load_workload("lightning_digits.py:LightningDigits", EXAMPLES)

    class Manual(base.module):
        automatic_optimization = False

    class AtTheEnd(base.module):
        def on_validation_end(self) -> None: ...

    class Two(base.module):
        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(part.parameters()) for part in (self.layers, self.head)], []

    class Unnamed(base.module):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters())
            return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)}

    class Hooked(base.module):
        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            return batch

    def of(module: type[nn.Module]) -> Any:
        return type("Of", (base,), {"module": module})({})

    for module, words in (
        (Manual, "optimizes by itself"),
        (AtTheEnd, "defines on_validation_end"),
        (Hooked, "defines on_after_batch_transfer"),
    ):
        with pytest.raises(WorkloadError, match=words):
            of(module).build_model()
    for module, words in ((Two, "has 2 optimizers"), (Unnamed, "needs a monitor")):
        workload = of(module)
        with pytest.raises(WorkloadError, match=words):
            workload.optimizer(workload.build_model())


def _lightning_rates(make: Any, steps: int, losses: dict[int, float]) -> list[float]:
    """The rate in each step of epochs of two steps. ``losses`` are evaluations by step. Resumes once."""
    base: Any = load_workload("lightning_digits.py:LightningDigits", EXAMPLES)

    class Scheduled(base.module):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
            return {"optimizer": optimizer, "lr_scheduler": make(optimizer, self.trainer)}

    workload = type("Of", (base,), {"module": Scheduled, "num_train": 64})({"batch": 32, "width": 4})
    model, rates, state = workload.build_model(), [], None
    for begin, end in ((0, steps // 2), (steps // 2, steps)):
        optimizer = make_optimizer(workload, model, Layout(), None, steps)
        if state is not None:
            optimizer.param_groups[0]["lr"] = state[0]
            updates_of(model).load(state[1], with_options=True)
        for step in range(begin, end):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            updates_of(model).end_step()
            if step + 1 in losses:
                updates_of(model).after_evaluation(workload, {"val_loss": losses[step + 1]})
        state = optimizer.param_groups[0]["lr"], json.loads(json.dumps(updates_of(model).state()))
    return rates


def test_schedulers_of_a_lightning_module_are_stepped_at_their_intervals_also_after_a_resume() -> None:
    def every_epoch(optimizer: Any, trainer: Any) -> Any:
        return lr_scheduler.ExponentialLR(optimizer, 0.5)

    def every_third_step(optimizer: Any, trainer: Any) -> Any:
        scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)
        return {"scheduler": scheduler, "interval": "step", "frequency": 3}

    def to_the_end(optimizer: Any, trainer: Any) -> Any:
        total = trainer.estimated_stepping_batches
        return {"scheduler": lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total), "interval": "step"}

    def waiting(optimizer: Any, trainer: Any) -> Any:
        scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        return {"scheduler": scheduler, "monitor": "val_loss"}

    assert _lightning_rates(every_epoch, 6, {}) == [1, 1, 0.5, 0.5, 0.25, 0.25]
    assert _lightning_rates(every_third_step, 8, {}) == [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25]
    assert _lightning_rates(to_the_end, 4, {}) == pytest.approx([1, 0.75, 0.5, 0.25])
    assert _lightning_rates(waiting, 6, {1: 1.0, 2: 2.0, 4: 0.5, 5: 3.0}) == [1, 1, 0.5, 0.5, 0.5, 0.25]


def test_a_scheduler_that_waits_for_a_metric_names_those_that_there_are() -> None:
    def wrong(optimizer: Any, trainer: Any) -> Any:
        return {"scheduler": lr_scheduler.ReduceLROnPlateau(optimizer), "monitor": "val_los"}

    with pytest.raises(WorkloadError, match="waits for 'val_los', but the metrics are val_loss"):
        _lightning_rates(wrong, 2, {1: 1.0})
