"""Each file on the page of arrivals trains, in micro-batches as in one, and no study refuses it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from estimators.model import Plan
from workloads import debug

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with all files of the page, and those that they import."""
    folder = tmp_path_factory.mktemp("arrivals")
    for page in ("workloads.md", "arrivals.md"):
        text = (DOCS / page).read_text()
        for name, code in re.findall(r"```python\n(?=\"\"\"(\w+\.py))(.*?)```", text, re.DOTALL):
            (folder / name).write_text(code)
    return folder


@pytest.mark.sample
@pytest.mark.full
@pytest.mark.parametrize(
    ("workload", "metric"),
    [
        ("squares.py:Squares", "recall"),
        ("lines.py:Lines", "accuracy"),
        ("taught.py:TaughtSpirals", "accuracy"),
        ("unfrozen.py:Unfrozen", "accuracy"),
        ("scales.py:Scales", "accuracy"),
    ],
)
def test_a_file_of_the_page_trains_in_micro_batches_as_in_one(
    folder: Path, capsys: pytest.CaptureFixture[str], workload: str, metric: str
) -> None:
    options = [f"{folder}/{workload}", "--steps", "4", "--report-every", "2", "--param", "frozen_steps=2"]
    losses = []
    for plan in ("micro_batch=32", "micro_batch=8,num_micro_batches=4"):
        debug.main([*options, "--plan", plan])
        captured = capsys.readouterr()
        assert not captured.err, "studies refuse neither the candidate nor the plan"
        assert metric in captured.out
        losses.append([float(loss) for loss in re.findall(r"^step .*train_loss (\S+)$", captured.out, re.M)])
    assert len(losses[0]) == 2 and losses[1] == pytest.approx(losses[0], rel=1e-3)


@pytest.mark.full
@pytest.mark.parametrize(
    ("workload", "metric", "plan"),
    [
        ("squares.py:Squares", "recall", Plan(8, 2, dp_replicate=2)),
        ("squares.py:Squares", "recall", Plan(16, dp_shard=2)),
        ("taught.py:TaughtSpirals", "accuracy", Plan(16, dp_replicate=2)),
        ("unfrozen.py:Unfrozen", "accuracy", Plan(16, dp_shard=2)),
        ("scales.py:Scales", "accuracy", Plan(8, 2, dp_shard=2)),
    ],
)
def test_two_ranks_train_a_file_of_the_page_as_one(
    ranks: Any, folder: Path, workload: str, metric: str, plan: Plan
) -> None:
    options = {"workload": workload, "code_dir": str(folder), "params": {"frozen_steps": 2}, "metric": metric}
    alone = ranks.curve(Plan(32), steps=4, report_every=2, **options)
    two = ranks.curve(plan, steps=4, report_every=2, **options)
    assert len(two) == 2
    for (_, values), (_, expected) in zip(two, alone, strict=True):
        assert values["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-4)
