"""What of a space fits is counted by ranks and by the values of each parameter, and a child process answers the API."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from scamp_service.errors import InvalidInput
from scamp_service.settings import ROOT
from scamp_service.sizing.estimate import equal_devices
from scamp_service.sizing.screen.drafted import answer, counted
from scamp_service.sizing.screen.screened import Screened
from scamp_service.study.parse import parse_study

SPEC = {
    "name": "chars",
    "workload": "stdlib_gpt",
    "objective": {"metric": "loss", "direction": "minimize"},
    "space": {"depth": {"choice": [1, 2]}, "width": {"low": 16, "high": 64, "step": 16}},
    "fixed": {"heads": 4, "batch": 4, "context": 16},
    "budget": {"trials": 4, "steps": 4},
}


def test_values_of_a_parameter_are_counted_in_parts_and_refused_candidates_apart() -> None:
    tried = [Screened({"lr": n / 10, "act": "ab"[n % 2], "depth": 3}, 0, refused="too\ndeep") for n in range(8)]
    counts = counted(tried)
    assert (counts["num_candidates"], counts["num_fitting"], counts["num_refused"]) == (8, 0, 8)
    assert (counts["why_refused"], counts["ranks"]) == ("too", [])
    assert [(part["name"], part["first"], part["last"], part["num_candidates"]) for part in counts["parts"]] == [
        ("lr", 0.0, 0.1, 2),
        ("lr", 0.2, 0.3, 2),
        ("lr", 0.4, 0.5, 2),
        ("lr", 0.6, 0.7, 2),
        ("act", "a", "a", 4),
        ("act", "b", "b", 4),
    ]


def test_a_study_that_is_bound_to_kinds_that_are_not_there_is_not_screened(tmp_path: Path) -> None:
    spec = parse_study({**SPEC, "kinds": ["T4"]})
    with pytest.raises(InvalidInput, match="may use T4 alone"):
        answer(spec, None, equal_devices(2, 4000), 6, tmp_path)


@pytest.mark.full
@pytest.mark.usefixtures("warm_traces")
def test_a_process_answers_with_what_fits(tmp_path: Path) -> None:
    question = pickle.dumps((parse_study(SPEC), None, equal_devices(2, 4000), 6, tmp_path))
    command = [sys.executable, "-m", "scamp_service.sizing.screen.drafted"]
    ended = subprocess.run(command, input=question, stdout=subprocess.PIPE, cwd=ROOT, check=True)
    counts = json.loads(ended.stdout.splitlines()[-1])
    assert (counts["num_candidates"], counts["num_fitting"], counts["num_refused"]) == (6, 6, 0)
    assert [ranks["num_ranks"] for ranks in counts["ranks"]] == [1]
