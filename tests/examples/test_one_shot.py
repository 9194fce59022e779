"""The example of one-shot search in one real run, small. Simulations kill its controller (``tests/simulation``)."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from scamp_service.lifecycle import StudyState, TrialState
from scamp_service.store.store import Store
from tests.conftest import Scamp

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.soak  # a minute; ``test_inheriting.py`` trains the supernet, ``control`` tests whom it makes trials of
@pytest.mark.ray
def test_the_best_candidate_by_the_weights_of_a_supernet_is_trained_alone(tmp_path: Path, scamp: Scamp) -> None:
    code = (EXAMPLES / "cells.py").read_text()
    small = code.replace("WIDTHS, DEPTHS = (8, 16), (1, 2)", "WIDTHS, DEPTHS = (4, 8), (1,)")
    assert small != code
    (tmp_path / "cells.py").write_text(small.replace("NUM_TRAIN, NUM_EVAL = 1200, 597", "NUM_TRAIN, NUM_EVAL = 64, 64"))
    study = yaml.safe_load((EXAMPLES / "one_shot.yaml").read_text())
    study["space"] |= {"width": {"ordinal": [4, 8]}, "depth": {"ordinal": [1]}}
    study["search"]["one_shot"] = {"candidates": 2, "best": 1, "steps": 2}
    study["budget"] = {"trials": 4, "steps": 2, "report_every": 2}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    done = scamp(tmp_path / "data", "run", tmp_path / "study.yaml", "--json", SCAMP_VIRTUAL_DEVICES="1")
    assert done.returncode == 0, done.stderr
    store = Store(f"sqlite:///{tmp_path}/data/scamp.db")
    assert store.studies.get(1).state is StudyState.COMPLETED
    supernet, *scored, alone = store.trials.page(1)
    store.close()
    assert (supernet.params["supernet"], supernet.state, supernet.step) == (True, TrialState.PRUNED, 2)
    assert [(trial.state, trial.step, trial.parent_number) for trial in scored] == [(TrialState.PRUNED, 0, 0)] * 2
    assert (alone.state, alone.step, alone.parent_number) == (TrialState.COMPLETED, 2, None)
    assert alone.params == max(scored, key=lambda trial: (trial.value or 0.0, -trial.number)).params
