"""Names and values of metrics leave a rank as plain text and numbers, or not at all."""

from __future__ import annotations

import math
from decimal import Decimal
from enum import IntEnum, StrEnum
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from workloads.training.reported import (
    LONGEST_NAME,
    MOST_METRICS,
    Unreportable,
    expect_own_names,
    joined,
    plain_metrics,
)


class Name(StrEnum):
    ACCURACY = "accuracy"


class Level(IntEnum):
    HIGH = 3


class OwnFloat(float):
    def __reduce__(self) -> Any:
        raise AssertionError("it is pickled")


class OwnText(str):
    def __str__(self) -> str:
        return "another text"


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (True, 1.0),
        (7, 7.0),
        (OwnFloat(0.5), 0.5),
        (Level.HIGH, 3.0),
        (Decimal("0.25"), 0.25),
        (Fraction(1, 4), 0.25),
        (np.float32(0.5), 0.5),
        (np.int64(2), 2.0),
        (np.bool_(True), 1.0),
        (np.array(0.5), 0.5),
        (torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
        (torch.tensor([2]), 2.0),
        (math.inf, math.inf),
    ],
)
def test_any_real_number_is_a_value(value: Any, number: float) -> None:
    plain = plain_metrics({"loss": value})
    assert plain == {"loss": number} and type(plain["loss"]) is float


def test_a_name_is_the_text_without_its_class() -> None:
    plain = plain_metrics({Name.ACCURACY: 1, OwnText("val/loss"): 2, "größe (µm)": 3})
    assert plain == {"accuracy": 1.0, "val/loss": 2.0, "größe (µm)": 3.0}
    assert {type(name) for name in plain} == {str}


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ({"loss": 1 + 2j}, "gives a complex number as metric 'loss': return its real part"),
        ({"loss": np.complex64(1)}, "complex"),
        ({"loss": torch.tensor(1 + 2j)}, "complex"),
        ({"loss": "0.5"}, "gives a str as metric 'loss': make it one number"),
        ({"loss": torch.zeros(2)}, r"gives a Tensor of shape \[2\]"),
        ({"loss": 10**400}, "gives a int"),
        ({"loss": None}, "gives a NoneType"),
        ({3: 1}, "names a metric 3: name metrics by text"),
        ({b"loss": 1}, "name metrics by text"),
        ({"": 1}, "names a metric '': use characters"),
        ({" ": 1}, "names a metric ' '"),
        ({"a\ud800": 1}, r"names a metric 'a\\ud800': use characters that can be printed"),
        ({"a\0": 1}, "use characters"),
        ({"a\x1b[2J": 1}, "use characters"),
        ({"x" * 10**6: 1}, f"by 1,000,000 characters.*use at most {LONGEST_NAME}"),
        ({f"m{n}": n for n in range(5000)}, f"returns 5,000 metrics: return at most {MOST_METRICS:,}"),
        ({"predicted.peak_mib": 1}, "names of predicted quantities"),
    ],
)
def test_what_cannot_be_stored_and_shown_is_refused_in_words(metrics: dict[Any, Any], words: str) -> None:
    with pytest.raises(Unreportable, match=words) as refused:
        plain_metrics(metrics)
    assert len(str(refused.value)) < 300


def test_no_two_metrics_have_one_name() -> None:
    assert joined({"loss": 1.0}, {"f1": 2.0}) == {"loss": 1.0, "f1": 2.0}
    with pytest.raises(Unreportable, match="names two metrics 'f1'"):
        joined({"f1": 1.0}, {"f1": 2.0})


def test_a_training_loss_is_no_metric_of_a_workload() -> None:
    expect_own_names(["loss", "critic_loss"], ["generator"])
    with pytest.raises(Unreportable, match="'train_loss', under which ScaMP reports the mean training loss"):
        expect_own_names(["loss", "train_loss"], [])
    with pytest.raises(Unreportable, match="that of phase 'generator': give it another name, such as 'held_out_gen"):
        expect_own_names(["generator_loss"], ["critic", "generator"])
