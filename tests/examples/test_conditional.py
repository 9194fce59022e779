"""The example of a conditional space: its candidates are models that train, in YAML as in Python."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from scamp_service.lifecycle import TrialState
from scamp_service.search.proposals import Search
from scamp_service.sizing.submission_check import check_workload
from scamp_service.sizing.user_workload import with_space
from scamp_service.study.parse import parse_study
from scamp_service.study.user_code.bundling import bundle_code
from tests.scamp_service.search.studies import hash_value, live
from workloads.loading import load_workload

STUDY = Path(__file__).parents[2] / "examples" / "conditional.yaml"
SPEC = parse_study(STUDY.read_text())


@pytest.mark.sample
@pytest.mark.full
def test_candidates_have_the_parameters_that_their_other_parameters_ask_for_and_train() -> None:
    make = load_workload(SPEC.workload, STUDY.parent)
    trials = live(Search(SPEC), lambda t: replace(t, state=TrialState.COMPLETED, value=hash_value(t.params)), 30)
    assert trials[0].params["layers"] == [{"op": "conv", "kernel": 3}] * 2
    for params in (trial.params for trial in trials):
        assert ("momentum" in params) == (params["optimizer"] == "sgd") != ("weight_decay" in params)
        assert all(params["width"] % layer.get("heads", 1) == 0 for layer in params["layers"])
        assert any(layer["op"] != "skip" for layer in params["layers"])
    for params in (trial.params for trial in trials[::6]):
        workload = make(params)
        model = workload.build_model()
        optimizer = workload.optimizer(model)
        before = workload.loss(model, workload.train_batch(torch.arange(16)))
        before.backward()
        optimizer.step()
        assert torch.isfinite(before)
    kinds = {(len(trial.params["layers"]), trial.params["optimizer"]) for trial in trials}
    assert len(kinds) >= 6


@pytest.mark.full
@pytest.mark.usefixtures("warm_traces")
def test_the_class_gives_the_same_space_in_python() -> None:
    code = bundle_code(STUDY, SPEC.workload)
    fields = {name: value for name, value in SPEC.as_given().items() if name != "space"}
    completed = with_space(parse_study(fields), code)
    assert completed == SPEC
    assert check_workload(completed, code) == []
