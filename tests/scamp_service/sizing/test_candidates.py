from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from scamp_service.control.decide.snapshot import Snapshot, StudyRules
from scamp_service.control.stopping.never_stop import NeverStop
from scamp_service.lifecycle import StudyState
from scamp_service.sizing.candidates import candidates_of
from scamp_service.sizing.estimate import devices
from scamp_service.study.objective import Objective
from scamp_service.study.objectives import Objectives

STUDY = """
name: digits
workload: vit_digits
objective: {metric: accuracy}
space: {depth: {choice: [1, 2]}}
"""


@pytest.mark.parametrize("what", ["../made/net.py:net", "{folder}/made/net.py:net", "made/net.py:net", "made.net:net"])
def test_a_function_may_be_in_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    is_below = what.startswith("made")
    for name in ("made", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "made" / "net.py").write_text("def net(): ...\n")
    monkeypatch.chdir(tmp_path if is_below else tmp_path / "other")
    found = candidates_of(what.format(folder=tmp_path), {"width": 8})
    name = "made/net.py" if is_below else "net.py"
    assert found.workload == f"{name}:net"
    assert found.code is not None and zipfile.ZipFile(io.BytesIO(found.code)).namelist() == [name]


@pytest.mark.parametrize(
    ("trials", "max_concurrent", "share"), [(2, None, 2), (10, None, 1), (10, 1, 4), (2, 3, 2), (3, 2, 2)]
)
def test_a_candidate_has_the_share_of_the_devices_that_its_study_begins_with(
    trials: int, max_concurrent: int | None, share: int, tmp_path: Path
) -> None:
    limit = f", max_concurrent: {max_concurrent}" if max_concurrent else ""
    (tmp_path / "study.yaml").write_text(f"{STUDY}budget: {{trials: {trials}{limit}}}")
    cluster = devices(4, 96)
    assert candidates_of(str(tmp_path / "study.yaml"), {}).share(cluster) == share
    rules = StudyRules(
        id=1, state=StudyState.RUNNING, workload="vit_digits", code=None,
        objectives=Objectives((Objective(metric="accuracy"),)),
        seed=0, max_trials=trials, steps=10, report_every=10, stopping=NeverStop(),
        max_concurrent=max_concurrent, max_lost=2, max_oom=3, num_trials=0,
    )  # fmt: skip
    study = Snapshot(now=1.0, studies={1: rules}, trials=(), attempts=(), gangs={}, cluster=cluster)
    assert study.share() == share


def test_without_a_study_a_candidate_has_a_share_of_one_device() -> None:
    assert candidates_of("vit_digits", {}).share(devices(4, 96)) == 1
