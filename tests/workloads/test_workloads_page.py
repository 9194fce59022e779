from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from estimators.model import Plan

PAGE = Path(__file__).parents[2] / "docs" / "workloads.md"


def test_the_example_on_the_page_trains_and_learns_on_two_ranks(ranks: Any, tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "spirals.py").write_text(code)
    curve = ranks.curve(
        Plan(50, dp_shard=2, recompute=True),
        steps=100,
        report_every=100,
        workload="spirals.py:Spirals",
        code_dir=str(tmp_path),
        params={"depth": 2, "width": 32, "lr": 1e-2},
        metric="accuracy",
    )
    assert curve[-1][1]["accuracy"] > 0.75  # chance is a third
