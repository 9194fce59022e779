"""Every study in ``examples`` is valid, and its candidates are models that can be built."""

from __future__ import annotations

from pathlib import Path

import pytest

from scamp_service.search.proposals import Search
from scamp_service.study.parse import parse_study
from scamp_service.study.workload_names import is_file
from workloads.loading import load_workload

EXAMPLES = Path(__file__).parents[2] / "examples"
STUDIES = [path for path in sorted(EXAMPLES.glob("**/*.yaml")) if "workload:" in path.read_text()]


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_an_example_is_a_study_whose_candidates_can_be_built(path: Path) -> None:
    spec = parse_study(path.read_text())
    candidates = Search(spec).propose([], 0, len(spec.start_with) + 3)
    assert candidates
    make = load_workload(spec.workload, path.parent if is_file(spec.workload) else None)
    assert sum(1 for _ in make(candidates[-1]).build_model().parameters())
