"""Shrunk models keep what matters of the originals, and coverage counts every family that was tried."""

from __future__ import annotations

import pytest
import torch

from benchmarks.covering import plain
from benchmarks.covering.asked import Asked
from benchmarks.covering.models import families
from benchmarks.covering.models.listed import LEFT_OUT, LISTED
from benchmarks.covering.models.shrink import LAYERS, VOCABULARY, WIDTH
from benchmarks.covering.parts import families_part, peaks_part
from workloads.function import FunctionWorkload

pytest.importorskip("transformers")


@pytest.mark.parametrize("family", ["llama", "qwen3_next", "deepseek_v3", "bart", "clip"])
def test_a_shrunk_configuration_is_small_and_keeps_its_ratios(family: str) -> None:
    config = families.small_config(family)
    for part in (config, *families.parts_of(config)):
        fields = vars(part)
        assert fields.get("vocab_size", 0) <= VOCABULARY and fields.get("num_hidden_layers", 0) <= LAYERS
        assert fields.get("hidden_size", 0) <= WIDTH
        heads, keys = fields.get("num_attention_heads", 1), fields.get("num_key_value_heads") or 1
        assert fields.get("hidden_size", heads) % heads == 0 and heads % keys == 0


def test_a_shrunk_configuration_keeps_every_kind_of_layer() -> None:
    assert set(families.small_config("qwen3_next").layer_types) == {"linear_attention", "full_attention"}


def test_the_shrunk_model_of_a_family_trains_for_real() -> None:
    workload = FunctionWorkload(families.make, {"family": "bert", "batch": 2})
    model = workload.build_model()
    loss = workload.loss(model, workload.train_batch(torch.arange(2)))
    assert loss.isfinite() and loss.requires_grad


def test_enough_is_tried_and_nothing_that_is_left_out() -> None:
    assert len(LISTED) >= 150 and not set(LISTED) & set(LEFT_OUT)
    drawn = peaks_part.cases(False, 0)
    assert len(drawn) >= 60 and len({str(case) for case in drawn}) == len(drawn)
    assert peaks_part.cases(False, 0) != peaks_part.cases(False, 1)
    models = {case.params.get("model") for case in drawn}
    assert models >= set(plain.MODELS)
    steps_without_closure = {name for name, kind in vars(torch.optim).items() if _is_optimizer(kind)} - {"LBFGS"}
    assert {case.params.get("optimizer") for case in drawn} >= steps_without_closure


def _is_optimizer(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer


def test_refused_families_lower_the_share_and_bounded_ones_do_not() -> None:
    answered = families_part.Result(1, 2.0, 1.0, "", 3.0, "")
    bounded = families_part.Result(1, 4.0, 1.0, "", 3.0, "", ["at most"])
    refused = families_part.Result(0, 9.0, 1.0, "it depends", 3.0, "fails: RuntimeError")
    values = families_part.figures([answered, bounded, refused, refused])
    assert (values["families"], values["families_answered_pct"], values["families_bounded"]) == (4, 50, 1)
    assert values["cold_worst_seconds"] == 9


def test_the_worst_peak_is_the_one_most_below_and_refusals_have_no_error() -> None:
    results = [peaks_part.Result(*sizes, "", 0, "fails: RuntimeError") for sizes in ((100, 100), (95, 100), (110, 100))]
    values = peaks_part.figures([*results, peaks_part.Result(0, 0, "it depends", 0, "not asked")])
    assert values["coverage_min_pct"] == pytest.approx(-5) and values["coverage_median_pct"] == pytest.approx(5)
    assert (values["coverage_cases"], values["coverage_refused"], values["memtracker_cases"]) == (3, 1, 0)


def test_a_case_reads_back_what_it_wrote_and_says_what_is_unusual() -> None:
    case = Asked("plain", {"model": "mlp", "arithmetic": "amp", "batch": 3, "optimizer": "SGD"})
    assert Asked.from_json(case.to_json()) == case
    assert str(case) == "mlp amp batch=3 SGD"
