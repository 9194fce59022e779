"""The example of the page about data sets trains, in workers, on one rank and on two."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from estimators.model import Plan

PAGE = Path(__file__).parents[2] / "docs" / "data.md"


@pytest.mark.full
def test_the_example_on_the_page_learns_the_same_on_one_rank_and_on_two(ranks: Any, tmp_path: Path) -> None:
    for name, code in re.findall(r"```python\n(?=\"\"\"(\w+.py))(.*?)```", PAGE.read_text(), re.DOTALL):
        (tmp_path / name).write_text(code)
    options = {"workload": "scored.py:Scored", "code_dir": str(tmp_path), "params": {"lr": 1e-2}, "metric": "auc"}
    alone = ranks.curve(Plan(40), steps=30, report_every=15, **options)
    two = ranks.curve(Plan(10, 2, dp_replicate=2), steps=30, report_every=15, **options)
    assert alone[-1][1]["auc"] > 0.9 and alone[-1][1]["f1"] > 0.5
    for (_, values), (_, expected) in zip(two, alone, strict=True):
        assert values == pytest.approx(expected, abs=1e-5)
