"""The example of the page about data sets trains, in workers, on one rank and on two."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from estimators.model import Plan

PAGE = Path(__file__).parents[2] / "docs" / "data.md"


def test_the_example_on_the_page_learns_the_same_on_one_rank_and_on_two(ranks: Any, tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(\"\"\"blobs.py.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "blobs.py").write_text(example)
    own = {"workload": "blobs.py:Blobs", "code_dir": str(tmp_path), "params": {"lr": 1e-2}, "metric": "accuracy"}
    one = ranks.curve(Plan(40), steps=30, report_every=15, **own)
    two = ranks.curve(Plan(10, 2, dp_replicate=2), steps=30, report_every=15, **own)
    assert one[-1][1]["accuracy"] > 0.85  # three of four points are of one class
    assert [values["train_loss"] for _, values in one] == pytest.approx([v["train_loss"] for _, v in two], abs=1e-5)
