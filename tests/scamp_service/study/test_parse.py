"""A study from text and from a mapping: read as it is written, or refused in one line."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from scamp_service.errors import InvalidInput
from scamp_service.study.parse import changed_study, parse_study, read_study, study_text
from scamp_service.study.spaces.space import Range
from scamp_service.study.spec import StudySpec
from tests.studies import refusal, study

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


def test_text_mapping_and_json_say_the_same() -> None:
    spec = parse_study(TEXT)
    assert parse_study(spec.to_json()) == spec
    assert parse_study(json.dumps(spec.to_json())) == spec
    assert parse_study(TEXT.encode()) == spec


def test_a_key_that_older_yaml_takes_for_true_is_a_name() -> None:
    text = json.dumps(study()).rstrip("}") + "}}, notify: [{email: ada@example.org, on: [trial.failed]}]}"
    receiver = parse_study(text).notify[0]
    assert (receiver.email, receiver.on) == ("ada@example.org", ["trial.failed"])
    again = parse_study(study_text(parse_study(text))).notify
    assert again == [receiver] and parse_study(parse_study(text).as_given()).notify == again


def test_numbers_are_read_as_they_are_written() -> None:
    spec = parse_study(TEXT)
    lr, width = spec.space["lr"], spec.space["width"]
    assert isinstance(lr, Range) and (lr.low, lr.high, lr.integer) == (1e-4, 1e-2, False)
    assert isinstance(width, Range) and width.integer
    assert spec.budget.steps == 1000
    assert spec.fixed == {"batch": 64, "weight_decay": 0.01, "label": "01", "amp": True}
    assert spec.start_with == [{"depth": 4, "lr": 1e-3}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "got nothing"),
        ("[1, 2]", "got [1, 2]"),
        ("just words", "got 'just words'"),
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
        ("x" * (2**20 + 1), "at most 1048576 are allowed"),
        ({1: 2}, "Keys should be strings"),
        ({"name": object()}, "name: must be a valid string"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_is_no_study_is_refused_in_one_line(text: Any, message: str) -> None:
    assert message in refusal(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"name": "x",\n "space": {"lr" 1}}',
            "the study is not valid JSON in line 2, column 17: Expecting ':' delimiter",
        ),
        ('{"name": "x"', "the study is not valid JSON in line 1, column 13: Expecting ',' delimiter"),
        ('{"name": {"a": 1, "a": 2}}', "the study is not valid JSON: the key 'a' is repeated"),
        ('{"name":\t' + '{"a":\t' * 5000 + "}" * 5001, "the study is nested too deeply"),
        ('{"name":\t' + "9" * 5000 + "}", "the study is not valid JSON: Exceeds the limit"),
        ('{"name": "x"}', "the study is not valid: workload is missing"),
        ('{\n\t"name": "x"}', "the study is not valid: workload is missing"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_file_of_json_is_refused_as_json(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "study.json"
    file.write_text(text)
    with pytest.raises(InvalidInput) as refused:
        read_study(file)
    assert str(refused.value).startswith(message)
    file = tmp_path / "study.yaml"
    file.write_text('{"name": "x"')
    with pytest.raises(InvalidInput, match="not valid YAML"):
        read_study(file)


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


def test_no_study_of_the_examples_loses_anything_when_it_is_written_and_read_again() -> None:
    files = sorted((Path(__file__).parents[3] / "examples").rglob("*.yaml"))
    studies = [parse_study(text) for file in files if "workload:" in (text := file.read_text())]
    assert len(studies) > 20
    for original in studies:
        assert parse_study(study_text(original)).to_json() == original.to_json()


SEVERAL = {name: value for name, value in study().items() if name != "objective"} | {
    "objectives": [{"metric": "loss"}, {"metric": "accuracy"}]
}
EVOLUTION = study(search={"sampler": {"name": "evolution", "inherit": True, "population_size": 20}})


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(scalars | texts, lambda inner: st.lists(inner, max_size=3), max_leaves=5)
sizes, shares = st.integers(2, 40), st.floats(0.01, 1)


def options(name: str, kind: Any, **fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Mappings in which ``name`` is ``kind``, and any of the other fields may be left out."""
    return st.fixed_dictionaries({name: st.just(kind)}, optional=fields)


samplers = st.one_of(
    options("name", "tpe", multivariate=st.booleans(), n_startup_trials=sizes),
    options("name", "evolution", population_size=sizes, sample_size=sizes, inherit=st.booleans()),
    options("name", "nsga2", population_size=sizes, crossover=st.sampled_from(["sbx", "spx"]), mutation_prob=shares),
    options("name", "cmaes", popsize=sizes, lr_adapt=st.booleans()),
    st.sampled_from(["random", "qmc", "sampler.py:Mine", {"name": "tune", "searcher": "optuna"}]),
)
rules = st.one_of(
    options("rule", "asha", min_steps=sizes, promote=st.booleans()),
    options("rule", "hyperband", brackets=sizes, reduction_factor=sizes),
    options("rule", "threshold", lower=st.floats(-1, 0), upper=st.floats(1, 2)),
    options("rule", "patience", reports=sizes, min_delta=shares),
    st.just({"rule": "pbt", "mutate": ["lr"]}),
    st.just({"rule": "none"}),
)
metrics = st.sampled_from(["loss", "a/b", "predicted.peak_mib", "predicted.step_seconds", "1e3", "yes", "größe"])
objectives = st.fixed_dictionaries({"metric": metrics}, optional={"direction": st.sampled_from(["minimize"])})
lengths = st.one_of(
    st.fixed_dictionaries({}, optional={"steps": st.integers(1, 10**4), "report_every": sizes}),
    st.fixed_dictionaries({"epochs": st.integers(1, 400) | st.just("1e1")}, optional={"report_every": sizes}),
)
limits = st.fixed_dictionaries(
    {}, optional={"trials": st.integers(1, 500), "seconds": st.floats(1, 1e6), "target": shares, "max_oom": sizes}
)
dimensions = st.one_of(
    st.fixed_dictionaries(
        {"choice": st.lists(values, min_size=1, max_size=4)}, optional={"when": st.just({"kind": "a"})}
    ),
    st.fixed_dictionaries({"low": st.just(0.5), "high": st.floats(1, 1e300)}, optional={"prior": st.just(0.75)}),
    st.fixed_dictionaries({"low": st.just(1), "high": st.integers(1, 2**40)}, optional={"log": st.booleans()}),
    st.just({"repeat": {"low": 0, "high": 2}, "each": {"width": {"ordinal": [1, "2 ", None]}}}),
)
spaces = st.dictionaries(st.sampled_from(["lr", "on", "x"]), dimensions).map(
    lambda space: {"kind": {"choice": ["a", "b"]}, **space}
)
studies = st.builds(
    lambda aims, length, limit, **fields: {
        **study(), **aims, "budget": {**limit, **length},
        **{name: value for name, value in fields.items() if value is not None},
    },
    objectives.map(lambda aim: {"objective": aim}) | st.lists(objectives, min_size=1, max_size=3).map(
        lambda aims: {"objectives": aims, "objective": None}
    ),
    lengths,
    limits,
    space=spaces,
    start_with=st.none() | st.just([{"kind": "a"}]),
    name=st.none() | texts,
    search=st.none() | st.fixed_dictionaries({"sampler": samplers}, optional={"seed": sizes}),
    stopping=st.none() | rules | st.lists(rules, min_size=1, max_size=3),
    fixed=st.none() | st.dictionaries(st.sampled_from(["batch", "a", "no", "e1"]), values, max_size=3),
)  # fmt: skip


@pytest.mark.full
@given(studies)
@example({**study(), "fixed": {"a": "\x85\u2028", "b": " \n"}})
@settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
def test_every_stored_study_may_be_submitted_again_as_its_own_text_and_as_it_was_given(given_study: Any) -> None:
    if given_study.get("objective", "") is None:
        del given_study["objective"]
    try:
        spec = parse_study(given_study)
    except InvalidInput:
        assume(False)
    stored = parse_study(json.loads(json.dumps(spec.to_json())))
    assert stored.to_json() == spec.to_json()
    assert parse_study(study_text(stored)).to_json() == spec.to_json()
    assert parse_study(spec.as_given()).to_json() == spec.to_json()


def test_what_follows_from_other_fields_of_a_stored_study_follows_from_changed_ones() -> None:
    def changed(change: str, original: Any) -> Any:
        stored = parse_study(parse_study(original).to_json())
        return changed_study(parse_study(study_text(stored)), [change])

    budget = changed("budget.epochs=2", study(budget={"epochs": 12})).budget
    assert (budget.length, budget.epochs, budget.steps) == (2, 2, None)
    assert changed("search.sampler.sample_size=2", EVOLUTION).search.sampler.population_size == 20
    assert changed("search.sampler.population_size=4", EVOLUTION).search.sampler.sample_size == 2
    assert changed("budget.trials=450", study(search={"sampler": "nsga2"})).search.sampler.population_size == 30
    assert changed("objectives.0.metric=cost", SEVERAL).objective.metric == "cost"
    assert (
        changed("objective.metric=loss", study(objective={"metric": "predicted.step_seconds"})).stopping.rule == "asha"
    )


def test_a_study_is_changed_by_assignments() -> None:
    spec = parse_study({**SEVERAL, "priority": 3})
    changed = changed_study(
        spec, ["budget.trials=7", "space.lr.high=0.5", "fixed.new=1e-2", "objectives.1.direction=maximize", "priority="]
    )
    assert (changed.budget.trials, changed.priority, changed.fixed["new"]) == (7, 0, 0.01)
    assert changed.as_given()["objectives"][1]["direction"] == "maximize" and changed_study(spec, []) is spec
    assert changed.as_given()["space"]["lr"]["high"] == 0.5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("budget.trials", "KEY=VALUE, such as"),
        ("budget..trials=3", "KEY=VALUE, such as"),
        ("budgett.trials=3", "did you mean budget"),
        ("name.first=3", "there is no first in"),
        ("objectives.2.direction=minimize", "there is no 2 in"),
        ("budget.trials=[", "is not valid YAML"),
        ("workload=", "workload is missing"),
    ],
)
def test_a_change_that_does_not_fit_is_refused(change: str, words: str) -> None:
    spec = parse_study(SEVERAL)
    with pytest.raises(InvalidInput, match=re.escape(words)):
        changed_study(spec, [change])


def test_interpolations_in_a_file_are_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("omegaconf")
    file = tmp_path / "study.yaml"

    def read(data: str) -> Any:
        fixed = {"data": data, "trials": "${budget.trials}", "text": r"\${budget.trials}"}
        file.write_text(json.dumps(study(budget={"trials": 3}, fixed=fixed)))
        return read_study(file).fixed

    monkeypatch.setenv("DATA", "/data")
    assert read("${oc.env:DATA}/digits") == {"data": "/data/digits", "trials": 3, "text": "${budget.trials}"}
    with pytest.raises(InvalidInput, match=r"study.yaml: Interpolation key 'data' not found; the text .* is \\\$"):
        read("${data}")
    monkeypatch.setitem(sys.modules, "omegaconf", None)
    with pytest.raises(InvalidInput, match=r"which OmegaConf resolves, which is not installed: pip install omegaconf"):
        read("${oc.env:DATA}")
