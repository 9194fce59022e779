"""The example of one-shot search on a real service, small, with the controller killed on the way."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
import yaml

from tests.services.processes import Served, until

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.ray
@pytest.mark.timeout(600)
def test_the_best_candidate_by_the_weights_of_a_supernet_is_trained_alone_though_the_controller_is_killed(
    tmp_path: Path,
) -> None:
    shutil.copy(EXAMPLES / "cells.py", tmp_path)
    study = yaml.safe_load((EXAMPLES / "one_shot.yaml").read_text())
    study["search"]["one_shot"] = {"candidates": 3, "best": 1, "steps": 4}
    study["budget"] = {"trials": 5, "steps": 4, "report_every": 2}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    service = Served(tmp_path / "data")
    client = service.client
    try:
        number = client.submit(tmp_path / "study.yaml")["id"]
        until(lambda: len(list(client.trials(number))) > 1, "the supernet's end")
        for pid in service.pids("scamp_service controller"):
            os.kill(pid, signal.SIGKILL)
        until(lambda: client.study(number)["finished_at"], "the study's end")
        supernet, *scored, alone = client.trials(number)
        assert client.study(number)["state"] == "COMPLETED"
        assert (supernet["params"]["supernet"], supernet["state"], supernet["step"]) == (True, "PRUNED", 4)
        assert [(one["state"], one["step"], one["parent_number"]) for one in scored] == [("PRUNED", 0, 0)] * 3
        assert (alone["state"], alone["step"], alone["parent_number"]) == ("COMPLETED", 4, None)
        assert alone["params"] == max(scored, key=lambda one: (one["value"], -one["number"]))["params"]
    finally:
        service.abandon()
