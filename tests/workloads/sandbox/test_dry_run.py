"""Which parameters a workload reads, and which metrics it returns, without training it."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scamp_service.study.workload_names import BUILT_INS
from workloads.loading import load_workload
from workloads.protocol import Phase, Workload
from workloads.refusals import WorkloadError, WrongResult
from workloads.sandbox import dry_run
from workloads.sandbox.dry_run import NotingParams, mentioned, quoted_names, try_candidates

PARAMS = {"width": 8, "rate": 0.5}


@pytest.mark.parametrize(
    ("use", "read"),
    [
        (lambda params: params["width"], {"width"}),
        (lambda params: params.get("width", 3), {"width"}),
        (lambda params: params.get("depth", 3), {"depth"}),
        (lambda params: "rate" in params, {"rate"}),
        (lambda params: params.pop("rate"), {"rate"}),
        (lambda params: params.setdefault("rate", 1), {"rate"}),
        (lambda params: (len(params), bool(params), str(params), f"{params}"), set()),
        (lambda params: dict(**params), {"width", "rate"}),
        (lambda params: {**params}, {"width", "rate"}),
        (lambda params: dict(params), {"width", "rate"}),
        (lambda params: params | {"more": 1}, {"width", "rate"}),
        (lambda params: {"more": 1} | params, {"width", "rate"}),
        (lambda params: {}.update(params), {"width", "rate"}),
        (lambda params: params.copy(), {"width", "rate"}),
        (lambda params: copy.copy(params), {"width", "rate"}),
        (lambda params: copy.deepcopy(params), {"width", "rate"}),
        (lambda params: pickle.dumps(params), {"width", "rate"}),
        (lambda params: json.dumps(params), {"width", "rate"}),
        (lambda params: [name for name in params if name == "width"], {"width", "rate"}),
        (lambda params: list(params.items()), {"width", "rate"}),
        (lambda params: set(params) - {"width"}, {"width", "rate"}),
    ],
)
def test_a_parameter_is_read_by_a_look_at_it_and_by_a_look_at_all(
    use: Callable[[dict[str, Any]], object], read: set[str]
) -> None:
    params = NotingParams(PARAMS)
    use(params)
    assert params.read == read and isinstance(params, dict)


class Line(Workload):
    num_train, num_eval = 1, 3  # fewer than the samples that are tried

    def build_model(self) -> nn.Module:
        return nn.Linear(4, self.params["width"])

    def train_batch(self, indices: Tensor) -> Tensor:
        assert indices.tolist() == [0, 0]
        return torch.ones(len(indices), 4)

    def eval_batch(self, indices: Tensor) -> Tensor:
        assert indices.tolist() == [0, 1]
        return torch.ones(len(indices), 4)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).square().mean() * self.params.get("scale", 1.0)

    def evaluate(self, model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        size = model(batch).square().mean(-1)
        return {"size": size, "large": (size > self.params.get("threshold", 1)).float()}


def tries(workload: type[Workload], *candidates: dict[str, Any], metric: str = "size") -> list[dict[str, Any]]:
    return try_candidates(workload, candidates, [metric])


@pytest.mark.parametrize("most", [dry_run.MOST_REAL_PARAMETERS, 3])
def test_all_that_a_step_and_an_evaluation_read_is_known_of_small_and_of_fake_models(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(dry_run, "MOST_REAL_PARAMETERS", most)
    (result,) = tries(Line, {"width": 2, "lr": 0.1})
    assert result == {"read": ["lr", "scale", "threshold", "weight_decay", "width"], "metrics": ["large", "size"]}


class Shown(Line):
    """Looks at values of its model, which a fake one does not have."""

    def illustrate(self, model: nn.Module, step: int) -> None:
        self.params.get("shown")
        assert len(model(torch.ones(1, 4)).flatten().tolist()) == self.params["width"]


@pytest.mark.parametrize("most", [dry_run.MOST_REAL_PARAMETERS, 3])
def test_what_a_workload_shows_is_tried_only_where_tensors_have_values(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dry_run, "MOST_REAL_PARAMETERS", most)
    (report,) = tries(Shown, {"width": 8, "shown": 1})
    assert "failed" not in report and "shown" in report["read"]


def test_parameters_that_no_optimizer_has_are_named() -> None:
    class Forgets(Line):
        def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
            return torch.optim.SGD(list(model.parameters())[:1], lr=0.1)

    (result,) = tries(Forgets, {"width": 2, "lr": 0.1})
    assert result["untrained"] == ["bias"] and "untrained" not in tries(Line, {"width": 2, "lr": 0.1})[0]


def test_sets_whose_samples_differ_in_size_are_named() -> None:
    class Uneven(Line):
        num_train = 4

        def train_batch(self, indices: Tensor) -> Tensor:
            return torch.ones(int(indices.sum()) + len(indices), 4)

        def eval_batch(self, indices: Tensor) -> Tensor:
            return torch.ones(len(indices), 4)

    (result,) = tries(Uneven, {"width": 2, "lr": 0.1})
    assert result["uneven"] == ["train"]


def test_candidates_are_tried_until_all_was_read_and_the_metric_is_there() -> None:
    class Choosy(Line):
        def __init__(self, params: Any) -> None:
            super().__init__(params)
            if params["width"] == 3:
                raise ValueError("width must be even")
            if params["width"] == 4:
                params["momentum"]

    candidates = [{"width": width, "momentum": 0.9} for width in (3, 2, 4, 6)]
    results = tries(Choosy, *candidates)
    assert results[0] == {"refused": "width must be even"}
    assert len(results) == 3
    assert "momentum" in results[2]["read"]
    assert len(tries(Choosy, *candidates, metric="other")) == 4


def test_whatever_fails_says_nothing_about_the_workload_except_a_wrong_form() -> None:
    class NoData(Line):
        def train_batch(self, indices: Tensor) -> Tensor:
            raise FileNotFoundError("/data/images.npy")

    assert tries(NoData, {"width": 2}) == [{"failed": "FileNotFoundError: /data/images.npy"}]

    class Averages(Line):
        def evaluate(self, model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
            return {"size": model(batch).mean()}

    with pytest.raises(WorkloadError, match="do not average over the samples"):
        tries(Averages, {"width": 2})

    class Uncounted(Line):
        num_eval = None  # type: ignore[assignment]

    with pytest.raises(WorkloadError, match="num_eval is missing"):
        tries(Uncounted, {"width": 2})


def test_a_loss_of_several_numbers_is_of_a_wrong_form() -> None:
    class Several(Line):
        def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
            return (model(batch) - 1).square()

    with pytest.raises(WrongResult, match="but the loss is one number: return its"):
        tries(Several, {"width": 2})


def _start(params: Mapping[str, Any]) -> str:
    return str(params["start"])


class Tuned(Line):
    def load_weights(self, model: nn.Module) -> None:
        print(self.params["teacher"], _start(self.params))

    def on_step(self, step: int, steps: int, optimizer: torch.optim.Optimizer) -> None:
        if step > 10:
            print(self.params["late"])


def test_a_parameter_that_a_method_names_which_only_a_training_calls_is_read() -> None:
    params = {"width": 2, "teacher": "a.pt", "start": "b.pt", "late": 1}
    (result,) = tries(Tuned, params, {**params, "width": 3})
    assert set(params) <= set(result["read"])
    assert not {"teacher", "start", "late"} & set(tries(Line, params)[0]["read"])
    assert not {"teacher", "start", "late"} & set(tries(Tuned, {"width": 2})[0]["read"]), "only what a study has"


def test_a_name_in_the_users_files_or_put_together_there_may_still_be_read(tmp_path: Path) -> None:
    source = """def rate(params, kind):
    print(f"width {params[f'{kind}_rate']} dht")
    return params["beta" + str(1)], params["{}_decay".format(kind)], params["gamma_%s" % kind]
"""
    (tmp_path / "net.py").write_text(source)
    (tmp_path / "more.json").write_text('{"momentum": 0.9}')
    (tmp_path / "broken.py").write_text("def (")
    unknown = ["thdiw"[::-1], "dets_rate"[::-1], "3ahpla"[::-1]]  # not in this file, which has the class
    (tmp_path / "weights.bin").write_text(unknown[0])
    mentioned_names = ["momentum", "sgd_rate", "beta1", "weight_decay", "gamma_x", "threshold"]
    assert mentioned([*mentioned_names, *unknown], Line, tmp_path) == mentioned_names
    (tmp_path / "study.yaml").write_text(f"{unknown[0]}: 1")
    assert mentioned(unknown, Line, tmp_path) == unknown[:1] and mentioned(unknown, Line, tmp_path, {".py"}) == []
    assert quoted_names(tmp_path) == ["beta"]
    words_of_the_base_class = ["sreyal"[::-1], "sehctab"[::-1]]
    assert mentioned([*words_of_the_base_class, "weight_decay"], Line, tmp_path) == ["weight_decay"]


@pytest.mark.parametrize("name", BUILT_INS)
def test_what_is_said_of_a_built_in_workload_is_what_it_reads_and_returns(name: str) -> None:
    entry = BUILT_INS[name]
    (result,) = tries(load_workload(name, None), {}, metric=entry.metrics[0])
    assert result == {"read": sorted(entry.parameters), "metrics": sorted(entry.metrics)}


class Waiting(Line):
    def on_evaluate(self, metrics: Mapping[str, float]) -> None:
        assert metrics["val_loss"]


class Counted(Line):
    """Its rate depends on how often it was asked for."""

    def scheduler(self, optimizer: torch.optim.Optimizer, steps: int) -> Any:
        calls = iter(range(1, 100))
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / next(calls))


class SetTwice(Line):
    def scheduler(self, optimizer: torch.optim.Optimizer, steps: int) -> Any:
        return torch.optim.lr_scheduler.StepLR(optimizer, 5)

    def on_step(self, step: int, steps: int, optimizer: torch.optim.Optimizer) -> None:
        optimizer.param_groups[0]["lr"] = 0.5


class Idle(Line):
    def phases(self) -> list[Phase]:
        return [Phase("idle", Line.loss.__get__(self), lambda model: torch.optim.SGD([], lr=1.0))]


class TrainLoss(Line):
    """Its metric would be lost, because the training loss has this name."""

    def evaluate(self, model: nn.Module, batch: Tensor) -> Any:
        return {"train_loss": batch[:, 0]}


class GeneratorLoss(Line):
    """Its metric would be lost, because the loss of its phase has this name."""

    def phases(self) -> list[Phase]:
        sgd = torch.optim.SGD
        return [Phase("generator", self.loss, lambda model: sgd(model.parameters(), lr=1.0))]

    def evaluate(self, model: nn.Module, batch: Tensor) -> Any:
        return {"generator_loss": batch[:, 0]}


@pytest.mark.parametrize("most", [dry_run.MOST_REAL_PARAMETERS, 3])
@pytest.mark.parametrize(
    ("workload", "words"),
    [
        (TrainLoss, "'train_loss', under which ScaMP reports the mean training loss: give it another name"),
        (GeneratorLoss, "'generator_loss', under which ScaMP reports that of phase 'generator'"),
        (Counted, "scheduler returns a scheduler that does not continue after a resume"),
        (SetTwice, "on_step sets the learning rate, and scheduler returns a scheduler of it: keep one"),
        (Idle, "phase 'idle' trains no parameter"),
        (Waiting, "on_evaluate looks up 'val_loss', but the metrics are "),
    ],
)
def test_schedulers_phases_and_names_of_metrics_that_cannot_be_used_are_refused(
    monkeypatch: pytest.MonkeyPatch, workload: type[Workload], words: str, most: int
) -> None:
    monkeypatch.setattr(dry_run, "MOST_REAL_PARAMETERS", most)
    with pytest.raises(WorkloadError, match=words):
        tries(workload, {"width": 2, "lr": 0.1})
