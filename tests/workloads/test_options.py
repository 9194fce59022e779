"""Options of a training are read from the parameters and checked."""

from __future__ import annotations

from typing import Any

import pytest

from workloads.options import TrainingOptions


def test_options_are_read_from_the_parameters_of_a_candidate() -> None:
    assert TrainingOptions.of({"width": 8}) == TrainingOptions()
    assert TrainingOptions.of({"clip_norm": 1, "precision": "bf16", "ema_decay": 0.9}) == TrainingOptions(
        1, "bf16", 0.9
    )
    assert TrainingOptions.of({"swa_start": 0, "clip_norm": None}) == TrainingOptions(swa_start=0)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"clip_norm": 0}, "clip_norm is the largest norm of the gradients, a number above 0; got 0"),
        ({"clip_norm": float("nan")}, "clip_norm is"),
        ({"precision": "half"}, "precision is one of fp32, bf16, fp16, bf16-params; got 'half'"),
        ({"precision": []}, "precision is one of"),
        ({"ema_decay": 1}, "between 0 and 1; got 1"),
        ({"ema_decay": 0.9, "ema_warmup": "timm"}, "ema_warmup is one of none, copy, ratio, power; got 'timm'"),
        ({"ema_decay": 0.9, "average_buffers": 1}, "average_buffers is true or false; got 1"),
        ({"swa_start": 3, "ema_warmup": "copy"}, "ema_warmup needs ema_decay"),
        ({"average_buffers": True}, "average_buffers needs ema_decay or swa_start"),
        ({"swa_start": 0.5}, "an integer of at least 0; got 0.5"),
        ({"swa_start": 3, "ema_decay": 0.9}, "two ways to average the weights: keep one"),
        ({"reduce": "sum"}, "reduce is one of mean, adasum; got 'sum'"),
        ({"scale_lr": "linear"}, "scale_lr is one of none, adascale; got 'linear'"),
        ({"base_batch": 0}, "an integer of at least 1; got 0"),
        ({"reduce": "adasum", "scale_lr": "adascale"}, "two ways to train with a larger batch: keep one"),
        ({"precision": "bf16", "reduce_precision": "bf16"}, "reduce_precision needs precision: bf16-params"),
        ({"adasum_replicas": 3}, "a power of two; got 3"),
    ],
)
def test_values_that_make_no_sense_are_refused_in_words(params: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TrainingOptions.of(params)
