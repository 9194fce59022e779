"""Ported scripts: their studies are valid, they train, and the ports changed few lines of the scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.porting.ports_part import PORTS, cases, figures, measure
from estimators.model import Candidate, Plan
from scamp_service.search.proposals import Search
from scamp_service.study.parse import parse_study
from tests.workloads.one_rank import Collected
from workloads.loading import load_workload
from workloads.sandbox.dry_run import try_candidates
from workloads.training.attempt.job import TrainingJob
from workloads.training.runtime import train


@pytest.mark.sample
@pytest.mark.full
@pytest.mark.parametrize("name", sorted(folder.name for folder in PORTS.iterdir()))
def test_a_port_is_accepted_and_trains(name: str, tmp_path: Path) -> None:
    spec = parse_study((PORTS / name / "study.yaml").read_text())
    params = Search(spec).propose([], 0, 1)[0]
    (tried,) = try_candidates(load_workload(spec.workload, PORTS / name), [params], [spec.objective.metric])
    assert spec.objective.metric in tried["metrics"] and {*spec.space} <= {*tried["read"]}
    reporter = Collected(None)
    job = TrainingJob(
        Candidate(spec.workload, None, params),
        PORTS / name,
        Plan(8),
        0,
        2,
        2,
        None,
        tmp_path,
        1,
        None,
        [spec.objective.metric],
    )
    assert train(job, 0, 1, None, reporter) == "done" and len(reporter.reports) == 1


def test_ports_changed_few_lines() -> None:
    values = figures([measure(case, 0) for case in cases(True, 0)])
    assert values["port_lines_changed_pct"] <= 25 and values["port_adapter_lines"] <= 20
