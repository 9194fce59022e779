"""What a study may say, and the one message that tells what it may not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scamp_service.errors import InvalidInput
from scamp_service.study.spec import Choice, Range, StudySpec, parse_study

TEXT = """
name: demo
workload: digits_vit
objective: {metric: accuracy}
space:
  lr: {low: 1e-4, high: 1e-2, log: true}
  depth: {choice: [4, 6, 8]}
  width: {low: 32, high: 100, step: 32}
  dropout: {low: 0.0, high: 0.3, step: 0.1}
fixed: {batch: 64, weight_decay: 1e-2, label: "01", amp: true}
start_with: [{depth: 4, lr: 1e-3}]
budget: {trials: 24, steps: 1e3}
"""


def study(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "name": "demo",
        "workload": "digits_vit",
        "objective": {"metric": "accuracy"},
        "space": {"lr": {"low": 0.1, "high": 1.0}},
    }
    return {**base, **changes}


def refusal(source: Any) -> str:
    with pytest.raises(InvalidInput) as caught:
        parse_study(source)
    message = str(caught.value)
    assert "\n" not in message and len(message.encode()) < 2000
    return message


def test_text_mapping_and_json_say_the_same() -> None:
    spec = parse_study(TEXT)
    assert parse_study(spec.to_json()) == spec
    assert parse_study(json.dumps(spec.to_json())) == spec
    assert parse_study(TEXT.encode()) == spec


def test_numbers_are_read_as_they_are_written() -> None:
    spec = parse_study(TEXT)
    lr, width = spec.space["lr"], spec.space["width"]
    assert isinstance(lr, Range) and (lr.low, lr.high, lr.integer) == (1e-4, 1e-2, False)
    assert isinstance(width, Range) and width.integer
    assert spec.budget.steps == 1000
    assert spec.fixed == {"batch": 64, "weight_decay": 0.01, "label": "01", "amp": True}
    assert spec.start_with == [{"depth": 4, "lr": 1e-3}]


@pytest.mark.parametrize("value", [True, False, 1, 0, 1.0, 0.0, -3, 2.5, "", "1", "true", "x y"])
def test_values_keep_their_type(value: Any) -> None:
    spec = parse_study(study(fixed={"x": value}, space={"y": {"choice": [value]}}))
    dimension = parse_study(spec.to_json()).space["y"]
    assert isinstance(dimension, Choice)
    for kept in (spec.fixed["x"], dimension.choice[0]):
        assert type(kept) is type(value) and kept == value


@pytest.mark.parametrize(
    ("dimension", "count", "last"),
    [
        (Range(low=1, high=10, step=3), 4, 10),
        (Range(low=1, high=9, step=3), 3, 7),
        (Range(low=0.0, high=0.3, step=0.1), 4, 0.3),
        (Range(low=0.1, high=0.95, step=0.2), 5, 0.9),
        (Range(low=5, high=5), 1, 5),
        (Range(low=0.5, high=0.5), 1, 0.5),
        (Range(low=1, high=3), 3, 3),
    ],
)
def test_a_stepped_range_counts_in_decimals_and_ends_at_or_below_high(
    dimension: Range, count: int, last: float
) -> None:
    assert dimension.num_values == count
    assert dimension.value(count - 1) == last
    assert type(dimension.value(0)) is type(dimension.low)
    assert all(dimension.why_not(dimension.value(index)) == "" for index in range(count))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"space": {}}, "the search space is empty"),
    ({"space": {"lr": {"low": 0, "high": 1, "log": True}}}, "space.lr: a log range needs low > 0, got 0"),
    ({"space": {"lr": {"low": -1.0, "high": 1.0, "log": True}}}, "a log range needs low > 0"),
    ({"space": {"lr": {"low": float("nan"), "high": 1}}}, "space.lr.low: must be finite (got nan)"),
    ({"space": {"lr": {"low": 0, "high": "1e999"}}}, "space.lr.high: must be finite"),
    ({"space": {"lr": {"low": -1.7e308, "high": 1.7e308}}}, "space.lr: the range is too wide"),
    ({"space": {"lr": {"low": 0, "high": 10**30}}}, "space.lr.high: must lie within ±2^53"),
    ({"space": {"lr": {"low": True, "high": 3}}}, "space.lr.low: must be a number (got True)"),
    ({"space": {"lr": {"low": "a", "high": 3}}}, "space.lr.low: must be a number (got 'a')"),
    ({"space": {"lr": {"low": 1}}}, "space.lr.high is missing"),
    ({"space": {"lr": {"low": 2, "high": 1}}}, "low (2) must not exceed high (1)"),
    ({"space": {"lr": {"low": 1, "high": 2, "step": 0}}}, "step must be positive"),
    ({"space": {"lr": {"low": 1, "high": 2, "step": 0.5}}}, "the step of an integer range must be an integer"),
    ({"space": {"lr": {"low": 1, "high": 2, "step": 1, "log": True}}}, "a log range cannot have a step"),
    ({"space": {"lr": {"low": 0.0, "high": 1e9, "step": 1e-9}}}, "take a larger step"),
    ({"space": {"lr": {"low": 1, "hihg": 2}}}, "space.lr.hihg: unknown key; did you mean high?"),
    ({"space": {"lr": {"low": 1, "high": 2, "log": "yes"}}}, "space.lr.log: must be a valid boolean (got 'yes')"),
    ({"space": {"lr": 3}}, "space.lr: must be {choice: [value, …]} or {low: number, high: number} (got 3)"),
    ({"space": {"lr": {"choice": []}}}, "space.lr.choice: "),
    ({"space": {"lr": {"choice": [1, 2, 1.0]}}}, "lists 1 and 1.0, which are equal"),
    ({"space": {"lr": {"choice": [0, False]}}}, "lists 0 and False, which are equal"),
    ({"space": {"lr": {"choice": [[1]]}}}, "space.lr.choice.0: must be true, false, a number or a text"),
    ({"space": {"lr": {"choice": list(range(1001))}}}, "space.lr.choice: "),
    ({"space": {"lr": {"choice": ["x" * 1001]}}}, "must not be longer than 1000 characters"),
    ({"space": {f"p{n}": {"choice": [1]} for n in range(101)}}, "space: "),
    ({"space": {"learning rate": {"choice": [1]}}}, "parameter names are identifiers"),
    ({"space": {"": {"choice": [1]}}}, "parameter names are identifiers"),
    ({"space": {1: {"choice": [1]}}}, "space.1: must be a valid string"),
    ({"space": [1]}, "space: must be a valid dictionary"),
    ({"fixed": {"a-b": 1}}, "parameter names are identifiers"),
    ({"fixed": {"x": None}}, "fixed.x: must be true, false, a number or a text (got None)"),
    ({"fixed": {"x": float("inf")}}, "fixed.x: must be finite (got inf)"),
    ({"fixed": {"x": "a\ud800"}}, "fixed.x: must be text without NUL and lone surrogates"),
    ({"fixed": {"x": "a\x00"}}, "fixed.x: must be text without NUL and lone surrogates"),
    ({"\ud800": 1}, "must be a valid string"),
    ({"fixed": {"lr": 0.5}}, "lr: both in space and in fixed"),
    ({"start_with": [{"lr": 2.0}]}, "start_with[0].lr: 2.0 is not between 0.1 and 1.0"),
    ({"start_with": [{"lr": "big"}]}, "start_with[0].lr: 'big' is not a number"),
    ({"start_with": [{"lr": True}]}, "start_with[0].lr: True is not a number"),
    ({"start_with": [{"depth": 2}]}, "start_with[0] names depth, found neither in space nor fixed"),
    ({"start_with": [{}] * 21}, "start_with has 21 candidates, the budget 20 trials"),
    ({"start_with": {"lr": 1}}, "start_with: must be a valid list"),
    ({"space": {"n": {"low": 1, "high": 9, "step": 2}}, "start_with": [{"n": 4}]}, "4 is not 1 plus a multiple of 2"),
    ({"space": {"n": {"low": 1, "high": 9}}, "start_with": [{"n": 4.0}]}, "4.0 is not an integer"),
    ({"space": {"n": {"choice": [1, "a"]}}, "start_with": [{"n": 2}]}, "2 is not one of 1, 'a'"),
    ({"space": {"n": {"choice": [1]}}, "start_with": [{"n": True}]}, "True is not one of 1"),
    ({"space": {"batch": {"low": 0, "high": 8}}}, "batch is the number of samples per optimizer step"),
    ({"space": {"batch": {"low": 1.0, "high": 8.0}}}, "an integer of at least 1; got 1.0"),
    ({"space": {"batch": {"choice": [8, "16"]}}}, "an integer of at least 1; got '16'"),
    ({"fixed": {"batch": True}}, "an integer of at least 1; got True"),
    ({"search": {"sampler": "grid"}}, "lr is continuous or log"),
    ({"search": {"sampler": "bayes"}}, "search.sampler: must be 'tpe', 'random' or 'grid' (got 'bayes')"),
    ({"search": {"seed": -1}}, "search.seed: "),
    ({"search": {"seed": True}}, "search.seed: must be an integer (got True)"),
    ({"search": "tpe"}, "search: must be a mapping of sampler, seed (got 'tpe')"),
    (
        {"search": {"sampler": "grid"}, "space": {n: {"low": 0, "high": 999} for n in "ab"}},
        "the grid has 1000000 points",
    ),
    ({"budget": {"trials": 0}}, "budget.trials: must be greater than or equal to 1 (got 0)"),
    ({"budget": {"trials": 10**6}}, "budget.trials: must be less than or equal to 100000"),
    ({"budget": {"trials": True}}, "budget.trials: must be an integer (got True)"),
    ({"budget": {"trials": "3"}}, "budget.trials: must be an integer (got '3')"),
    ({"budget": {"steps": 1.5}}, "budget.steps: must be an integer (got 1.5)"),
    ({"budget": {"steps": 10, "report_every": 11}}, "nothing would be reported"),
    ({"budget": {"steps": 10**9, "report_every": 1}}, "set report_every to 10000 or more"),
    ({"budget": {"max_concurrent": 0}}, "budget.max_concurrent: "),
    ({"budget": {"hours": 3}}, "budget.hours: unknown key; allowed are trials, steps"),
    ({"stopping": {"rule": "median"}}, "stopping.rule: must be 'asha' or 'none'"),
    ({"stopping": {"reduction_factor": 1}}, "stopping.reduction_factor: "),
    ({"stopping": {"min_steps": 100}}, "stopping.min_steps (100) must be less than budget.steps (100)"),
    ({"objective": {"metric": ""}}, "objective.metric: "),
    ({"objective": {"metric": "a", "direction": "up"}}, "objective.direction: must be 'maximize' or 'minimize'"),
    ({"objective": None}, "objective: must be a mapping of metric, direction (got None)"),
    ({"name": ""}, "name: "),
    ({"name": "   "}, "name: must be printable text on one line"),
    ({"name": "a\nb"}, "name: must be printable text on one line"),
    ({"name": "x" * 101}, "name: "),
    ({"name": 3}, "name: must be a valid string (got 3)"),
    ({"workload": "../evil.py:X"}, "neither a built-in workload nor FILE.py:Class"),
    ({"workload": "/abs.py:X"}, "neither a built-in workload"),
    ({"workload": "os; rm"}, "neither a built-in workload"),
    ({"workload": "model.py"}, "neither a built-in workload"),
    ({"spaec": {}}, "spaec: unknown key; did you mean space?"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG, ids=[ascii(message[:40]) for _, message in WRONG])
def test_what_is_wrong_is_said_with_its_place(changes: dict[str, Any], message: str) -> None:
    assert message in refusal(study(**changes))


def test_several_mistakes_are_told_at_once() -> None:
    message = refusal({"objective": {}, "space": {"x": 1}, "budget": {"trials": 0, "steps": 0}, "colour": "red"})
    assert message.startswith("the study is not valid: name is missing; workload is missing; ")
    assert message.endswith("; and 2 more")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "this is None"),
        ("[1, 2]", "this is [1, 2]"),
        ("just words", "this is 'just words'"),
        ("name: [", "not valid YAML in line 1"),
        ("name: a\nspace: {}\nname: b", "line 3, column 1: the key 'name' is repeated"),
        ('{"space": {"x": {"low": 1, "low": 2}}}', "the key 'low' is repeated"),
        ("a: &x [1]\nb: *x", "line 2, column 4: aliases (*name) are not allowed"),
        ("name: !!python/object/apply:os.system [id]", "not valid YAML in line 1, column 7"),
        ("name: 2024-13-45", "not valid YAML"),
        ("? [a]\n: 1", "not valid YAML"),
        ("[" * 600, "nested too deeply"),
        ("a: \x00", "not valid YAML"),
        (b"\xff\xfe\xfa", "not valid YAML"),
        ("9" * 5000, "not valid YAML"),
        ("x" * (2**20 + 1), "at most 1048576 are read"),
        ({1: 2}, "Keys should be strings"),
        ({"name": object()}, "name: must be a valid string"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_is_no_study_is_refused_in_one_line(text: Any, message: str) -> None:
    assert message in refusal(text)


@given(st.text(max_size=200) | st.binary(max_size=100))
def test_no_text_raises_anything_else(text: str | bytes) -> None:
    with pytest.raises(InvalidInput):
        parse_study(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=8,
)


@given(st.sampled_from(list(StudySpec.model_fields)), json_values)
def test_no_value_of_any_field_raises_anything_else_or_changes_on_the_way(field: str, value: Any) -> None:
    try:
        spec = parse_study(study(**{field: value}))
    except InvalidInput:
        return
    assert parse_study(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize("workload", ["digits_vit", "model.py:MyWorkload", "models/vit.py:ViT"])
def test_a_workload_is_built_in_or_a_class_of_a_file_of_the_study(workload: str) -> None:
    assert parse_study(study(workload=workload)).workload == workload


def test_reports_come_ten_times_unless_said_otherwise() -> None:
    assert parse_study(study(budget={"steps": 95})).report_every == 10
    assert parse_study(study(budget={"steps": 3})).report_every == 1
    assert parse_study(study(budget={"steps": 95, "report_every": 7})).report_every == 7
