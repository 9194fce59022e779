"""The built-in GPT learns its text, and builds as its parameters say."""

from __future__ import annotations

import pytest
import torch

from workloads.models.stdlib_gpt import EVAL_MODULES, TRAIN_MODULES, VOCABULARY, StdlibGpt, _text, unigram_entropy
from workloads.training.samples import batch_indices
from workloads.training.step import train_step


@pytest.mark.full
def test_a_short_training_beats_knowing_the_frequencies_of_characters() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    workload = StdlibGpt({})
    model = workload.build_model()
    optimizer = workload.optimizer(model)
    for step in range(60):
        workload.on_step(step, 60, optimizer)
        batch = workload.train_batch(batch_indices(workload.num_train, 32, step, seed=0))
        train_step(workload, model, optimizer, [batch], 1)
    with torch.no_grad():
        metrics = workload.evaluate(model, workload.eval_batch(torch.arange(workload.num_eval)))
    assert metrics["unigram_entropy"][0] == pytest.approx(unigram_entropy())
    assert float(metrics["loss"].mean()) < unigram_entropy() - 0.4


def test_the_entropy_is_the_loss_of_predicting_the_frequencies() -> None:
    text = _text("eval").long()
    frequencies = torch.bincount(text, minlength=len(VOCABULARY)) / len(text)
    assert float(-frequencies[text].log().mean()) == pytest.approx(unigram_entropy(), abs=1e-4)


def test_held_out_modules_are_not_trained_on_and_both_texts_are_there() -> None:
    assert not set(TRAIN_MODULES) & set(EVAL_MODULES)
    assert 5e5 < len(_text("train")) < 4e6
    assert 1e5 < len(_text("eval")) < 1e6


def test_a_sample_is_its_window_of_the_text() -> None:
    workload = StdlibGpt({"context": 16})
    assert workload.train_batch(torch.tensor([0, 3]))[1].equal(_text("train")[48:65].long())
    assert workload.train_batch(torch.tensor([workload.num_train - 1])).shape == (1, 17)
    assert workload.eval_batch(torch.tensor([0, workload.num_eval - 1])).shape == (2, 17)


def test_the_model_builds_on_the_meta_device_and_looks_at_no_later_character() -> None:
    workload = StdlibGpt({"context": 8, "depth": 2, "width": 16})
    with torch.device("meta"):
        assert workload.build_model()(torch.zeros(3, 8, dtype=torch.int64)).shape == (3, 8, len(VOCABULARY))
    model = workload.build_model()
    text = torch.arange(8)[None]
    changed = text.clone()
    changed[0, 5] = 50
    same = (model(text) == model(changed)).all(-1)[0]
    assert same.tolist() == [True] * 5 + [False] * 3


@pytest.mark.parametrize("params", [{"context": 1}, {"width": 30}, {"depth": 0}, {"dropout": -0.1}])
def test_parameters_that_make_no_sense_say_so(params: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        StdlibGpt(params)
