"""Workloads that can run are admitted, and mistakes are refused in the user's words."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scamp_service.errors import InvalidInput
from scamp_service.sizing.submission_check import DryRun, candidates_to_try, check_workload, found_in, judge
from scamp_service.sizing.user_workload import with_space
from scamp_service.study.parse import parse_study
from scamp_service.study.spec import StudySpec
from scamp_service.study.user_code.bundling import bundle_code

WORKLOAD = """
import torch
from torch import nn
from workloads.protocol import Workload

class Mine(Workload):
    num_train = num_eval = 64
    def __init__(self, params):
        super().__init__(params)
        self.width = params.get("width", 4)
    def build_model(self): return nn.Linear(4, self.width)
    def train_batch(self, indices): return torch.ones(len(indices), 4)
    eval_batch = train_batch
    def loss(self, model, batch): return model(batch).square().mean()
    def evaluate(self, model, batch): return {"loss": model(batch).square().mean(-1)}
    def optimizer(self, model):
        if self.params["kind"] == "sgd":
            return torch.optim.SGD(model.parameters(), self.params["lr"], self.params.get("momentum", 0.0))
        return super().optimizer(model)
"""
KINDS = {"choice": ["adam", "sgd"]}


def study(workload: str = "mine.py:Mine", *, metric: str = "loss", fixed: Any = None, **space: Any) -> StudySpec:
    return parse_study(
        {
            "name": "mine",
            "workload": workload,
            "objective": {"metric": metric, "direction": "minimize"},
            "space": {"lr": {"low": 0.1, "high": 1.0}, **space},
            "fixed": fixed or {},
        }
    )


def checked(folder: Path, source: str, spec: StudySpec | None = None) -> list[str]:
    (folder / "mine.py").write_text(source)
    return check_workload(spec or study(kind=KINDS), bundle_code(folder / "study.yaml", "mine.py:Mine"))


@pytest.mark.usefixtures("warm_traces")
def test_a_workload_is_admitted_with_parameters_that_only_some_candidates_read(tmp_path: Path) -> None:
    assert (
        checked(tmp_path, WORKLOAD, study(kind=KINDS, momentum={"low": 0.0, "high": 0.9}, batch={"choice": [8]})) == []
    )


@pytest.mark.usefixtures("warm_traces")
@pytest.mark.parametrize(
    ("source", "said"),
    [
        (WORKLOAD + "\nraise RuntimeError('no such disk')\n", "no such disk"),
        (WORKLOAD + "\nimport not_a_module_of_anyone\n", r"line \d+, needs the module not_a_module.* pip install"),
        (
            WORKLOAD + "    def evaluate(self, model, batch):\n        from not_a_module_of_anyone import score\n",
            r"\Athe workload 'mine.py:Mine' cannot be used: mine.py, line \d+, needs the module not_a_module.*\Z",
        ),
        (WORKLOAD.replace("(Workload)", ""), "Workload"),
        (WORKLOAD + "\nimport os; os._exit(3)\n", "ended the process"),
        (WORKLOAD.replace("(batch).square().mean(-1)", "(batch).mean()"), "do not average over the samples"),
        (WORKLOAD.replace("num_train = num_eval", "num_train"), r"cannot be used: num_eval is missing: set it in"),
    ],
)
def test_a_workload_that_no_candidate_can_use_is_refused_in_its_own_words(
    tmp_path: Path, source: str, said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        checked(tmp_path, source)


@pytest.mark.usefixtures("warm_traces")
def test_a_parameter_that_is_never_read_and_an_unknown_objective_are_refused_together(tmp_path: Path) -> None:
    wrong = study(kind=KINDS, metric="los", widht={"choice": [4, 8]}, fixed={"depth": 2})
    with pytest.raises(InvalidInput) as refused:
        checked(tmp_path, WORKLOAD, wrong)
    assert str(refused.value) == (
        "the objective is 'los', but evaluate returns loss: did you mean 'loss'?; "
        "the workload never reads the parameter 'widht': did you mean 'width'?; "
        "the workload never reads the parameter 'depth': remove it, or read it in the workload"
    )


@pytest.mark.usefixtures("warm_traces")
@pytest.mark.parametrize(
    "fault", ["open('/data/images.npy')", "import os; os._exit(3)", "raise KeyError('no such model')"]
)
def test_nothing_is_concluded_from_a_dry_run_that_fails(tmp_path: Path, fault: str) -> None:
    source = WORKLOAD.replace("indices): return", f"indices):\n        {fault}\n        return")
    warnings = checked(tmp_path, source, study(kind=KINDS, metric="los", widht={"choice": [4]}))
    words = "all candidates that were tried on a few samples failed here, the first with [A-Z].*widht=4"
    assert all(re.match(words, warning) for warning in warnings) and len(warnings) <= 1  # 0 where the machine is busy


def test_a_built_in_workload_is_checked_without_a_process() -> None:
    assert check_workload(study("vit_digits", batch={"choice": [8]}, width={"choice": [8]}), None) == []
    assert check_workload(study("vit_digits", metric="train_loss"), None) == []
    with pytest.raises(InvalidInput, match="no_such_workload"):
        check_workload(study("no_such_workload"), None)
    with pytest.raises(InvalidInput, match=r"reads the parameter 'widht': did you mean 'width'\?\Z"):
        check_workload(study("vit_digits", widht={"choice": [8]}), None)
    with pytest.raises(
        InvalidInput, match=r"'acuracy', but evaluate returns accuracy, loss: did you mean 'accuracy'\?"
    ):
        check_workload(study("vit_digits", metric="acuracy"), None)


def test_candidates_have_every_choice_and_both_ends_of_every_range_between_them() -> None:
    spec = study(kind={"choice": [1, 2, 3]}, one={"low": 5, "high": 5}, fixed={"depth": 2, "lr0": 1.0})
    candidates = candidates_to_try(spec)
    assert [(candidate["lr"], candidate["kind"], candidate["one"]) for candidate in candidates] == [
        (0.1, 1, 5),
        (1.0, 2, 5),
        (0.1, 3, 5),
    ]
    assert all(candidate["depth"] == 2 for candidate in candidates)
    assert len(candidates_to_try(study(kind={"choice": list(range(100))}))) == 12


TRIED: list[dict[str, Any]] = [{"lr": 0.1}, {"lr": 1.0}]
FOUND = DryRun(frozenset({"lr", "width"}), ("accuracy", "loss"))


def test_what_the_users_code_mentions_is_only_doubted() -> None:
    spec = study(momentum={"choice": [0.9]}, beta={"choice": [0.9]})
    doubtful = replace(FOUND, mentioned=frozenset({"momentum", "beta"}))
    assert judge(spec, doubtful) == [
        "no candidate that was tried on a few samples has read 'momentum', 'beta': see that training reads it, "
        "with other parameters or later"
    ]
    partly = replace(FOUND, mentioned=frozenset({"score"}), is_complete=False)
    (warning,) = judge(study(metric="score"), partly)
    assert warning == "no candidate that was tried has returned the objective 'score', only accuracy, loss"
    for certain in (replace(partly, is_complete=True), replace(partly, mentioned=frozenset())):
        with pytest.raises(
            InvalidInput, match="'score', but evaluate returns accuracy, loss: choose one of these or tra"
        ):
            judge(study(metric="score"), certain)


@pytest.mark.usefixtures("warm_traces")
def test_a_misspelt_parameter_is_a_warning_where_the_workload_looks_at_all(tmp_path: Path) -> None:
    source = WORKLOAD.replace("self.width =", "print(dict(params)); self.width =")
    source = source.replace('self.params["lr"]', 'self.params.get("lr", 0.1)')
    spec = study(kind=KINDS, fixed={"momentun": 0.9, "widht": 8, "note": 1})
    (tmp_path / "study.yaml").write_text("fixed: {momentun: 0.9}")  # does not count as source
    assert checked(tmp_path, source, spec) == [
        f"no Python file of the workload contains the name of the parameter {wrong!r}: did you mean {right!r}?"
        for wrong, right in (("momentun", "momentum"), ("widht", "width"))
    ], "'note' is like no other name: it may be an argument of a library"


def test_a_name_that_only_other_files_contain_is_called_misspelt() -> None:
    """The study's file is often sent along."""
    spec = study(widht={"choice": [1, 2]})
    unread = replace(FOUND, mentioned=frozenset({"widht"}), not_in_source=frozenset({"widht"}))
    assert judge(spec, unread) == [
        "no Python file of the workload contains the name of the parameter 'widht': did you mean 'width'?"
    ]


def test_samples_of_unknown_size_are_a_warning_that_names_lengths() -> None:
    tries = [{"read": ["lr"], "metrics": ["loss"], "uneven": ["train"]}, {"read": ["lr"], "metrics": ["loss"]}]
    (warning,) = judge(
        study(),
        found_in({"tries": tries, "all_tried": True, "mentioned": [], "not_in_source": [], "quoted": []}, TRIED, True),
    )
    assert warning.startswith('samples of "train" differ in size') and "define `lengths`" in warning


def test_parameters_that_no_optimizer_has_are_a_warning() -> None:
    tries = [{"read": ["lr"], "metrics": ["loss"], "untrained": ["a", "b", "c", "d", "e"]}]
    (warning,) = judge(
        study(),
        found_in({"tries": tries, "all_tried": True, "mentioned": [], "not_in_source": [], "quoted": []}, TRIED, True),
    )
    assert warning.startswith("no optimizer has the parameters a, b, c and 2 more of the model, so they are never")


def test_a_parameter_under_several_conditions_is_in_a_candidate_that_is_tried() -> None:
    space: dict[str, Any] = {
        "opt": {"choice": ["sgd", "adam", "adamw"]},
        "nesterov": {"choice": [True, False], "when": {"opt": "sgd", "lookahead": False}},
        "lookahead": {"choice": [True, False], "when": {"opt": "sgd"}},
        "size": {"low": 1, "high": 9},
        "middle": {"choice": [1], "when": {"size": 5, "opt": "adam"}},
    }
    tried = candidates_to_try(study(**space))
    assert any(candidate.get("nesterov") is not None and candidate["lookahead"] is False for candidate in tried)
    assert any("middle" in candidate and candidate["size"] == 5 for candidate in tried)


def test_a_parameter_that_no_tried_candidate_has_is_only_doubted() -> None:
    spec = study(kind={"choice": ["a", "b"]}, rate={"choice": [1], "when": {"kind": "b"}})
    tries = [{"read": ["lr", "kind"], "metrics": ["loss"]}, {"failed": "OSError"}]
    dry_run = found_in(
        {"tries": tries, "all_tried": True, "mentioned": [], "not_in_source": [], "quoted": []},
        candidates_to_try(spec),
        True,
    )
    failures, unread = judge(spec, dry_run)
    assert unread.startswith("no candidate that was tried on a few samples has read 'rate': see that training reads it")
    assert failures.startswith(
        "1 of the candidates that were tried on a few samples failed here, the first with OSError"
    )


def test_metrics_that_a_few_samples_do_not_show_are_not_judged() -> None:
    unknown = {"read": ["lr"], "metrics": [], "unsummarized": True}
    dry_run = found_in(
        {"tries": [unknown], "all_tried": True, "mentioned": [], "not_in_source": [], "quoted": []}, TRIED, True
    )
    assert judge(study(metric="auc"), dry_run) == []
    with pytest.raises(InvalidInput, match="never reads the parameter 'widht'"):
        judge(study(metric="auc", widht={"choice": [4]}), dry_run)


def test_metrics_are_all_known_once_every_value_was_tried() -> None:
    ended = {"read": ["lr"], "metrics": ["loss"]}
    answer: dict[str, Any] = {
        "tries": [{"refused": "odd"}, ended],
        "all_tried": True,
        "mentioned": [],
        "not_in_source": [],
        "quoted": [],
    }
    assert found_in(answer, TRIED, True) == DryRun(frozenset({"lr"}), ("loss",))
    assert not found_in(answer, TRIED, False).is_complete
    assert not found_in({**answer, "all_tried": False}, TRIED, True).is_complete
    assert not found_in({**answer, "tries": [ended, {"failed": "OSError"}]}, TRIED, True).is_complete
    assert judge(study(metric="los"), found_in({**answer, "tries": [{"refused": "odd"}]}, TRIED, True)) == []


@pytest.mark.usefixtures("warm_traces")
def test_users_code_finds_no_secret_in_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCAMP_API_TOKEN", "the-token-of-the-api")
    monkeypatch.setenv("SCAMP_DATABASE_URL", "postgresql://scamp:the-password@host/scamp")
    source = (
        WORKLOAD + "\nimport os\nraise RuntimeError([n for n in os.environ if 'API_TOKEN' in n or 'DATABASE' in n])\n"
    )
    with pytest.raises(InvalidInput, match=r"RuntimeError: \[\]"):
        checked(tmp_path, source)


def test_candidates_to_try_have_every_choice_of_every_block_and_satisfy_the_constraints() -> None:
    blocks = {"repeat": {"low": 1, "high": 2}, "each": {"op": {"choice": ["a", "b", None]}}}
    spec = study(
        layers=blocks, width={"ordinal": [4, 6]}, kind=KINDS, momentum={"low": 0, "high": 1, "when": {"kind": "sgd"}}
    )
    tried = candidates_to_try(spec)
    assert {layer["op"] for candidate in tried for layer in candidate["layers"]} == {"a", "b", None}
    assert {len(candidate["layers"]) for candidate in tried} == {1, 2} and {
        candidate["width"] for candidate in tried
    } == {4, 6}
    assert {(candidate["kind"], candidate.get("momentum")) for candidate in tried} >= {("adam", None), ("sgd", 1)}
    limited = parse_study({**spec.as_given(), "constraints": ["width > 4"]})
    assert {candidate["width"] for candidate in candidates_to_try(limited)} == {6}


SPACE = """
    @classmethod
    def space(cls): return {"kind": {"choice": ("adam", "sgd")}, "lr": %s}
"""


@pytest.mark.usefixtures("warm_traces")
@pytest.mark.parametrize(
    ("source", "words"),
    [
        (WORKLOAD + SPACE % "{'low': 2, 'high': 1}", "space.lr: low (2) must not exceed high (1)"),
        (WORKLOAD + SPACE % "{'low': 2, 'high': {3}}", "space() must return a mapping of names to plain values"),
        (WORKLOAD + SPACE % "1 / 0", "ZeroDivisionError"),
        (WORKLOAD, "the study has no space, and 'mine.py:Mine' has no method space() that returns one"),
    ],
)
def test_a_space_of_a_class_is_checked_like_one_in_yaml(source: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(source)
    spec = parse_study({"name": "n", "workload": "mine.py:Mine", "objective": {"metric": "loss"}})
    with pytest.raises(InvalidInput) as caught:
        with_space(spec, bundle_code(tmp_path / "study.yaml", "mine.py:Mine"))
    assert words in str(caught.value)


def test_a_built_in_workload_has_no_space_of_its_own() -> None:
    with pytest.raises(InvalidInput, match="space is missing"):
        parse_study({"name": "n", "workload": "vit_digits", "objective": {"metric": "loss"}})


@pytest.mark.full
@pytest.mark.usefixtures("warm_traces")
def test_a_study_that_inherits_weights_needs_a_workload_that_says_how_and_has_a_supernet(tmp_path: Path) -> None:
    evolution = {"sampler": {"name": "evolution", "inherit": True}}
    one_shot = {"sampler": "random", "one_shot": {"candidates": 2, "best": 1}}
    fields = study(kind=KINDS).as_given() | {"stopping": {"rule": "none"}}
    with pytest.raises(InvalidInput, match=r"the workload 'mine\.py:Mine' has no method inherit"):
        checked(tmp_path, WORKLOAD, parse_study({**fields, "search": evolution}))
    inherits = WORKLOAD + "    def inherit(self, model, parent, parent_params): pass\n"
    assert checked(tmp_path, inherits, parse_study({**fields, "search": evolution})) == []
    with pytest.raises(InvalidInput, match="the workload never reads the parameter 'supernet'"):
        checked(tmp_path, inherits, parse_study({**fields, "search": one_shot}))
    supernet = inherits.replace('if self.params["kind"]', 'if not self.params.get("supernet") and self.params["kind"]')
    assert checked(tmp_path, supernet, parse_study({**fields, "search": one_shot})) == []
    with pytest.raises(InvalidInput, match="'vit_digits' has no method inherit"):
        check_workload(parse_study({**fields, "workload": "vit_digits", "search": evolution}), None)
