"""A replayed study takes the predicted seconds, and a seed repeats it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from placement.packing.projects import Project
from scamp.shown import duration
from scamp_service.errors import InvalidInput
from scamp_service.lifecycle import TrialState
from scamp_service.settings import Settings
from scamp_service.simulation.gantt import gantt_svg
from scamp_service.simulation.outcome import Simulated
from scamp_service.simulation.replay import ReplayOptions, Submitted, simulate, simulated_spec
from scamp_service.sizing.cluster_file import cluster_named
from scamp_service.study.spec import StudySpec

pytestmark = pytest.mark.usefixtures("warm_traces")


def spec(**changes: Any) -> StudySpec:
    fields = {
        "name": "small",
        "workload": "vit_digits",
        "objective": {"metric": "accuracy", "direction": "maximize"},
        "space": {"lr": {"low": 1e-4, "high": 1e-2, "log": True}},
        "fixed": {"depth": 2, "width": 32, "batch": 16},
        "search": {"sampler": "random", "seed": 3},
        "stopping": {"rule": "none"},
        "budget": {"trials": 8, "steps": 40, "report_every": 10, "target": 0.5},
    }
    return StudySpec.model_validate({**fields, **changes})


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("profiles")


def replay(study: StudySpec, cluster: str, profiles: Path, **options: Any) -> Simulated:
    result = simulate([Submitted(study)], cluster_named(cluster, Settings()), ReplayOptions(profiles, **options))
    assert not result.why_unfinished
    return result


@pytest.mark.full
def test_every_trial_trains_for_its_predicted_seconds_and_a_seed_repeats_the_log(profiles: Path) -> None:
    result = replay(spec(), "1x8xV100-16", profiles)
    assert result.states == {TrialState.COMPLETED: 8} and len(result.spans) == 8
    (took,) = {round(span.end - span.start, 9) for span in result.spans}
    assert took > 1.0
    assert result.makespan == pytest.approx(took)
    assert result.utilisation == pytest.approx(1.0)
    assert replay(spec(), "1x8xV100-16", profiles).to_json() == result.to_json()
    # Four on each of two devices take turns: they train as long as one after another.
    alone = replay(spec(), "1x8xV100-16", profiles, projects={"default": Project(trials=1)})
    assert alone.makespan == pytest.approx(8 * took, rel=0.1), "a quota lets one trial run at a time"
    two = replay(spec(), "1x2xV100-16", profiles)
    assert two.makespan == pytest.approx(1.0 + 4 * (took - 1.0))
    assert two.device_seconds == pytest.approx(8 * two.makespan)
    svg = gantt_svg("small", two)
    bars = [element for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("title")]
    assert len(bars) == 8
    assert "trial 0: 1 rank" in svg


@pytest.mark.full
def test_stopping_rules_judge_drawn_values(profiles: Path) -> None:
    stopping = {"rule": "asha", "min_steps": 1000, "reduction_factor": 2, "promote": True}
    study = spec(stopping=stopping, budget={"trials": 16, "steps": 4000, "report_every": 1000})
    result = replay(study, "1x4xV100-16", profiles)
    assert result.states[TrialState.PRUNED] >= 8 and result.states[TrialState.COMPLETED] >= 1
    full = replay(study, "1x4xV100-16", profiles, early_stopping=False)
    assert full.states == {TrialState.COMPLETED: 16} and full.device_seconds > result.device_seconds
    assert "no trial is stopped early" in full.assumed


def test_what_depends_on_real_values_is_left_out() -> None:
    rules = [{"rule": "asha", "min_steps": 10}, {"rule": "threshold", "lower": 0.2}]
    with_rules = spec(stopping=rules)
    assert [rule.rule for rule in simulated_spec(with_rules).stopping_rules] == ["asha"]
    assert [rule.rule for rule in simulated_spec(with_rules, early_stopping=False).stopping_rules] == ["none"]
    assert with_rules.targets and not simulated_spec(with_rules).targets


@pytest.mark.full
def test_epochs_need_the_number_of_their_steps(profiles: Path) -> None:
    study = spec(budget={"trials": 1, "epochs": 2})
    with pytest.raises(InvalidInput, match="--epoch-steps"):
        replay(study, "1x1xV100-16", profiles)
    assert replay(study, "1x1xV100-16", profiles, epoch_steps=100).makespan > 1.0


def test_durations_are_short() -> None:
    assert [duration(seconds) for seconds in (0.5, 59, 61, 3600, 5400, 90_000, 200_000)] == [
        *("0.5 s", "59 s", "1 min 1 s", "1 h", "1 h 30 min", "25 h", "2 d 7 h")
    ]
