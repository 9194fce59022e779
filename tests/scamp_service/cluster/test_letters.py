"""Letters of ranks to the sink hold plain values alone, and anything else is refused."""

from __future__ import annotations

import math
import pickle
from enum import StrEnum
from typing import Any

import pytest

from scamp_service.cluster.letters import letter, read
from scamp_service.errors import InvalidInput
from scamp_service.lifecycle import Outcome
from scamp_service.model import LogLine, Metric, Report


class Name(StrEnum):
    ACCURACY = "accuracy"


class OwnFloat(float):
    def __reduce__(self) -> Any:
        return print, ("code of a user runs in the sink",)


def test_what_a_rank_sends_arrives_plain() -> None:
    values = {Name.ACCURACY: OwnFloat(0.5), "loss": math.inf}
    rows = [Metric(1, 2, 3, 30, values, 1.0), Metric(1, 2, 4, 40, {"loss": math.nan}, 1.0)]
    sent = Report(1, 2, "token", ["accuracy"], rows, [LogLine(1, 2, 0, 1, 2.0, "é 🙂 \0 \udc80")], measured_bytes=9)
    method, (report,) = read(letter("flush", sent))
    assert (method, report.objectives, report.measured_bytes) == ("flush", ["accuracy"], 9)
    assert report.metrics[0] == Metric(1, 2, 3, 30, {"accuracy": 0.5, "loss": math.inf}, 1.0)
    assert math.isnan(report.metrics[1].values["loss"])
    assert [(type(name), type(value)) for name, value in report.metrics[0].values.items()] == [(str, float)] * 2
    assert report.logs[0].text == "é 🙂 \0 ?"
    method, args = read(letter("outcome", 1, 2, "token", Outcome.ERROR, "why \ud800", ""))
    assert (method, args) == ("outcome", (1, 2, "token", Outcome.ERROR, "why ?", ""))


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(("flush", ())),
        b"[]",
        b'["close", []]',
        b'["lease", []]',
        b'["__init__", ["sqlite://", ""]]',
        b'["blob", [["a"]]]',
        b'["outcome", [1, 1, "token", "WON", "", ""]]',
        letter("flush", Report(1, 1, "token", ["x"], [Metric(1, 1, 1, 1, {"a\0": 1.0}, 1.0)])),
        letter("flush", Report(1, 1, "token", logs=[LogLine(1, 1, 0, 1, 1.0, "x")])).replace(b'"x"', b'"\\ud800"'),
        letter("blob", "ab")[:-1],
        "not bytes but é",
    ],
)
def test_anything_else_is_refused(data: Any) -> None:
    with pytest.raises(InvalidInput, match="no message of a rank"):
        read(data)


def test_an_object_that_is_no_plain_value_is_not_sent() -> None:
    with pytest.raises(AttributeError, match="__slots__"):
        letter("blob", object())
