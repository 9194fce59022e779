"""Modules that were written for Lightning's Trainer train what their script says, under every plan, or are refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, SubsetRandomSampler
from torchmetrics import CatMetric, MaxMetric

from estimators.model import Plan
from tests.waiting import PATIENCE_SECONDS
from workloads.loading import load_workload
from workloads.refusals import WorkloadError
from workloads.sandbox.answers import _candidates
from workloads.sandbox.batch_check import why_whole
from workloads.sandbox.dry_run import try_candidates

HERE = Path(__file__).parent
FILE = "lightning_script.py"
DIGITS: Any = load_workload(f"{FILE}:Digits", HERE)
PLANS = [Plan(12, dp_shard=2), Plan(6, 2, dp_replicate=2, zero1=True), Plan(8, 3)]


def of(module: Any = DIGITS.module, data: Any = DIGITS.datamodule, params: dict[str, Any] | None = None) -> Any:
    return type("Of", (DIGITS,), {"module": module, "datamodule": data})(params or {})


def with_loaders(train: dict[str, Any] | None = None, val: dict[str, Any] | None = None) -> Any:
    class Data(DIGITS.datamodule):
        def train_dataloader(self) -> Any:
            options = {key: make(self.train) if callable(make) else make for key, make in (train or {}).items()}
            return DataLoader(self.train, **{"batch_size": 8, "shuffle": True, **options})

        def val_dataloader(self) -> Any:
            options = {key: make(self.val) if callable(make) else make for key, make in (val or {}).items()}
            return DataLoader(self.val, **{"batch_size": 8, **options})

    return Data


@pytest.mark.sample
@pytest.mark.full
@pytest.mark.parametrize("name", ["Digits", "DigitsByIndex"])
def test_a_script_trains_the_same_curve_under_every_plan(ranks: Any, name: str) -> None:
    options = {"workload": f"{FILE}:{name}", "code_dir": str(HERE), "params": {}, "metric": "val_acc"}
    single = ranks.curve(Plan(24), 6, **options)
    for plan in PLANS:
        for (step, values), (expected_step, expected) in zip(ranks.curve(plan, 6, **options), single, strict=True):
            assert step == expected_step and values == pytest.approx(expected, rel=1e-5, abs=1e-5), str(plan)
    names = {"lr", "val_acc", "val_loss", "val_step_loss", "worst_recall", "mean_recall", "epoch_of_evaluation"}
    assert names | {"val/MulticlassF1Score", "val/MulticlassRecall", "train_loss"} == set(single[0][1])
    assert single[0][1]["val_loss"] == pytest.approx(single[0][1]["val_step_loss"], rel=1e-5)
    assert [values["epoch_of_evaluation"] for _, values in single] == [0, 0, 1], "an epoch has 96 / 24 steps"
    assert [values["lr"] for _, values in single] == pytest.approx([0.1, 0.05, 0.05])


def test_a_step_gets_its_number_in_the_epoch_and_the_rate_of_the_optimizer_that_trains() -> None:
    class Numbered(DIGITS.module):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return torch.tensor([batch_idx, self.current_epoch, self.optimizers().param_groups[0]["lr"]]).sum()

    class Own(DIGITS):
        module = Numbered

        def optimizer(self, model: Any) -> torch.optim.Optimizer:
            return torch.optim.SGD(model.parameters(), lr=0.5)

    for workload in (of(Numbered), Own({})):
        model, batch = workload.build_model(), workload.train_batch(torch.arange(4))
        optimizer = workload.optimizer(model)
        assert workload.loss(model, batch).item() == pytest.approx(optimizer.param_groups[0]["lr"]), "before any step"
        assert len(workload.scheduler(optimizer, 6)) == (0 if isinstance(workload, Own) else 1)
        optimizer.param_groups[0]["lr"] = 0.25
        numbers = []
        for step in range(6):
            workload.on_step(step, 6, optimizer)
            numbers.append(workload.loss(model, batch).item())
        assert numbers == [0.25, 1.25, 2.25, 3.25, 1.25, 2.25], "an epoch has 96 / 24 steps"


@pytest.mark.full
def test_metrics_are_there_where_fsdp_casts_inputs(ranks: Any) -> None:
    options = {"workload": f"{FILE}:Digits", "code_dir": str(HERE), "params": {"precision": "bf16-params"}}
    ((_, values),) = ranks.curve(Plan(12, dp_shard=2), 1, report_every=1, metric="val_acc", **options)
    assert {"val_step_loss", "val_acc", "val_loss"} <= set(values)


def test_a_batch_is_that_of_the_loader_for_training() -> None:
    assert of().default_batch == 24
    assert of(params={"batch_size": 12}).default_batch == 12
    assert of(params={"batch_size": 12, "batch": 12}).default_batch == 12
    with pytest.raises(ValueError, match="batch is 16, but batch_size is 12: leave one of them out"):
        of(params={"batch_size": 12, "batch": 16})
    fixed: Any = load_workload("lightning_digits.py:LightningDigits", HERE.parents[2] / "examples")
    assert fixed({}).default_batch == 32
    with pytest.raises(ValueError, match="Digits takes no batch_size: name it batch in the study"):
        fixed({"batch_size": 16})


@pytest.mark.full
def test_a_prediction_and_the_debugger_take_the_batch_of_the_loader() -> None:
    params = [{}, {"batch_size": 48}, {"batch_size": 48, "batch": 24}]
    batches = _candidates({"workload": f"{FILE}:Digits", "params": params}, HERE)["candidates"]
    assert batches[:2] == [24, 48] and "batch is 24, but batch_size" in batches[2]
    options = [f"{HERE / FILE}:Digits", "--steps", "1", "--param", "batch_size=12"]
    command = [sys.executable, "-m", "workloads.debug", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 0 and "1 rank, micro-batch 12" in done.stdout, done.stdout + done.stderr


def test_a_constructor_of_lightning_gets_no_parameters() -> None:
    workload: Any = load_workload("lightning_digits.py:LightningDigits", HERE.parents[2] / "examples")
    (tried,) = try_candidates(workload, [{"width": 8, "widht": 8}], ["val_f1"])
    assert "width" in tried["read"] and "widht" not in tried["read"], "a misspelled parameter is seen"


def test_a_split_at_random_is_the_same_whoever_opens_the_loaders_first() -> None:
    torch.manual_seed(1)
    first = of()
    assert first.default_batch == 24
    torch.manual_seed(2)
    second = of()
    assert torch.equal(first.train_batch(torch.arange(4))[0], second.train_batch(torch.arange(4))[0])


def test_a_dry_run_lists_what_the_hook_logs_and_a_check_of_the_loss_runs() -> None:
    (tried,) = try_candidates(lambda params: of(params=dict(params)), [{}], ["val_acc"])
    assert {"val_acc", "val_loss", "worst_recall", "val/MulticlassRecall"} <= set(tried["metrics"]), tried

    class Coupled(DIGITS.module):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return super().training_step(batch, batch_idx) + self(batch[0]).std(0).sum()

    assert why_whole(of()) == ""
    assert "is no mean" not in why_whole(of()) and "halves" in why_whole(of(Coupled)), "without any optimizer"


def test_a_step_that_skips_batches_is_refused_before_and_while_it_trains() -> None:
    class Skipping(DIGITS.module):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 3:
                return None
            return super().training_step(batch, batch_idx)

    class Unseen(DIGITS.module):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return {"loss": None} if batch_idx == 3 else super().training_step(batch, batch_idx)

    with pytest.raises(WorkloadError, match=r"returns None, by which Lightning skips a batch.* \(line \d+\)"):
        of(Skipping).build_model()
    workload = of(Unseen)
    model, batch = workload.build_model(), workload.train_batch(torch.arange(4))
    optimizer = workload.optimizer(model)
    workload.on_step(2, 6, optimizer)
    assert workload.loss(model, batch).isfinite()
    workload.on_step(3, 6, optimizer)
    with pytest.raises(WorkloadError, match="training_step of Unseen returns None"):
        workload.loss(model, batch)


def test_a_batch_may_be_a_list_of_pictures_of_unlike_sizes() -> None:
    pictures: Any = [(torch.rand(3, 4 + number, 5), {"boxes": torch.rand(1 + number % 3, 4)}) for number in range(8)]

    def in_lists(samples: list[Any]) -> Any:
        return [image for image, _ in samples], [target for _, target in samples]

    class Boxes(DIGITS.datamodule):
        def setup(self, stage: str) -> None: ...

        def train_dataloader(self) -> Any:
            return DataLoader(pictures, batch_size=4, shuffle=True, collate_fn=in_lists)

        def val_dataloader(self) -> Any:
            return DataLoader(pictures, batch_size=4, collate_fn=in_lists)

    class Detector(DIGITS.module):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            images, targets = batch
            self.log("num", float(len(images)) + 0 * sum(target["boxes"].sum() for target in targets))

    workload = of(Detector, Boxes)
    model = workload.build_model()
    for num in (1, 2, 5):
        metrics, _ = workload.evaluate(model, workload.eval_batch(torch.arange(num)))
        assert metrics["num"].tolist() == num * [num], "one value for each picture, not for each channel"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (with_loaders({"shuffle": False}), "does not shuffle, but ScaMP does: pass shuffle=True"),
        (with_loaders({"shuffle": None, "sampler": lambda s: RandomSampler(s, num_samples=9)}), "has a RandomSampler"),
        (
            with_loaders({"shuffle": None, "sampler": lambda s: SubsetRandomSampler(range(9))}),
            "has a SubsetRandomSampler",
        ),
        (
            with_loaders(
                {
                    "shuffle": None,
                    "batch_size": 1,
                    "batch_sampler": lambda s: type("Buckets", (BatchSampler,), {})(SequentialSampler(s), 8, False),
                }
            ),
            "has Buckets, and ScaMP makes batches itself",
        ),
        (with_loaders({"shuffle": None, "batch_size": None}), "has no batch_size"),
        (with_loaders(val={"sampler": lambda s: SubsetRandomSampler(range(9))}), "torch.utils.data.Subset"),
        (with_loaders(val={"collate_fn": lambda s: lambda samples: samples}), "different functions as collate_fn"),
    ],
)
def test_a_loader_that_would_train_something_else_is_refused(data: Any, words: str) -> None:
    with pytest.raises(WorkloadError, match=words):
        of(data=data).dataset("train")


def test_an_own_order_replaces_the_sampler_of_a_loader() -> None:
    data = with_loaders({"shuffle": False})
    workload = type("Of", (DIGITS,), {"datamodule": data, "order": lambda self, *_: range(self.num_train)})({})
    assert len(workload.dataset("train")) == 96 and workload.default_batch == 8


def _measured(module: Any) -> Any:
    workload = of(module)
    torch.manual_seed(0)
    model = workload.build_model()
    _, outputs = workload.evaluate(model, workload.eval_batch(torch.arange(32)))
    return workload.summarize(outputs)


class Best(DIGITS.module):
    def __init__(self) -> None:
        super().__init__()
        self.best = MaxMetric()

    def on_validation_epoch_end(self) -> None:
        self.best(self.val_acc.compute())
        self.log("best", self.best.compute())


class OfTraining(DIGITS.module):
    def on_validation_epoch_end(self) -> None:
        self.log("train_acc", self.train_acc.compute())


class Counting(DIGITS.module):
    num_epochs = 0

    def on_validation_epoch_end(self) -> None:
        self.num_epochs += 1


class Gathering(DIGITS.module):
    def __init__(self) -> None:
        super().__init__()
        self.validation_step_outputs: list[Any] = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.validation_step_outputs.append(functional.cross_entropy(self(batch[0]), batch[1]))

    def on_validation_epoch_end(self) -> None:
        self.log("val_loss", torch.stack(self.validation_step_outputs).mean())
        self.validation_step_outputs.clear()


class Predicting(DIGITS.module):
    def on_validation_epoch_end(self) -> None:
        self.log("bias", self(torch.zeros(1, 64)).sum())


class Computing(DIGITS.module):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.val_acc.update(self(batch[0]), batch[1])
        self.log("val_acc", self.val_acc.compute())


class Weighing(DIGITS.module):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.val_loss.update(functional.cross_entropy(self(batch[0]), batch[1]), weight=len(batch[0]))


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (Best, "on_validation_epoch_end updates best, but nothing is kept from one evaluation to the next"),
        (OfTraining, "on_validation_epoch_end computes train_acc, which validation_step does not update"),
        (Counting, "on_validation_epoch_end keeps something in self.num_epochs"),
        (Gathering, "validation_step keeps something in self.validation_step_outputs.*CatMetric"),
        (Predicting, "on_validation_epoch_end uses parameters of the model"),
        (Computing, "a step computes a metric, but has only a part of the samples"),
        (Weighing, "val_loss is updated with a tensor of shape .* for 32 samples"),
    ],
)
def test_an_evaluation_that_would_depend_on_the_plan_is_refused(module: Any, words: str) -> None:
    with pytest.raises(WorkloadError, match=words):
        _measured(module)


def test_collections_may_be_logged_as_their_results_and_metrics_as_themselves() -> None:
    class Together(DIGITS.module):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log_dict(self.val_metrics(self(batch[0]), batch[1]))
            self.val_acc(self(batch[0]), batch[1])
            self.log("val_acc", self.val_acc)

        on_validation_epoch_end = None

    class AtTheEnd(DIGITS.module):
        def on_validation_epoch_end(self) -> None:
            self.log_dict(self.val_metrics)
            self.log("val_acc", self.val_acc)

    assert _measured(Together) == _measured(AtTheEnd)
    assert set(_measured(Together)) == {"val_acc", "val/MulticlassF1Score", "val/MulticlassRecall"}


def test_losses_of_samples_come_together_in_a_cat_metric() -> None:
    class Catching(DIGITS.module):
        def __init__(self) -> None:
            super().__init__()
            self.losses = CatMetric()

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.losses.update(functional.cross_entropy(self(batch[0]), batch[1], reduction="none"))

        def on_validation_epoch_end(self) -> None:
            self.log_dict({"num": len(self.losses.compute()), "worst": self.losses.compute().max()})

    measured = _measured(Catching)
    assert measured["num"] == 32 and 2 < float(measured["worst"]) < 4


@pytest.mark.parametrize(
    ("hook", "words"),
    [
        ("on_train_epoch_end", r"on_train_epoch_end, which nothing would call here: what changes with the epoch"),
        ("on_validation_epoch_start", "metrics are new for each evaluation"),
        ("optimizer_step", "override optimizer, scheduler or on_step of the workload"),
    ],
)
def test_a_hook_that_nothing_calls_is_refused_unless_a_subclass_says_none(hook: str, words: str) -> None:
    hooked = type("Hooked", (DIGITS.module,), {hook: lambda self: None, "__module__": __name__})
    with pytest.raises(WorkloadError, match=f"{words}.*{hook} = None"):
        of(hooked).build_model()
    of(type("Unhooked", (hooked,), {hook: None})).build_model()


def test_manual_optimization_is_refused_with_the_page_that_helps() -> None:
    with pytest.raises(WorkloadError, match=r"Several losses and optimizers.*docs/updates\.md"):
        of(type("Manual", (DIGITS.module,), {"automatic_optimization": False})).build_model()


def test_a_module_asks_the_trainer_only_for_what_is_known() -> None:
    class Asking(DIGITS.module):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.print("a line")
            return self.trainer.callback_metrics

    workload = of(Asking)
    with pytest.raises(AttributeError, match=r"callback_metrics is not known here.*max_epochs.*self\.optimizers\(\)"):
        workload.loss(workload.build_model(), workload.train_batch(torch.arange(4)))
