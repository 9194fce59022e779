"""A trial of the API is one flat row."""

from __future__ import annotations

from typing import Any

from scamp.export import columns_of, trial_row

TRIALS: list[dict[str, Any]] = [
    {
        "id": 7,
        "study_id": 1,
        "number": 0,
        "state": "COMPLETED",
        "origin": "SEARCH",
        "params": {"lr": 0.1, "act": "relu", "layers": [{"op": "conv", "width": 8}, {"op": "id"}], "kernel": [3, 3]},
        "plan": {"micro_batch": 8},
        "value": 0.5,
        "metrics": {},
        "healed": False,
    },
    {
        "id": 8,
        "study_id": 1,
        "number": 1,
        "state": "RUNNING",
        "origin": "EXTERNAL",
        "params": {"lr": 1, "act": None, "depth": 3},
        "plan": None,
        "value": None,
        "metrics": {"loss": 0.7, "train_loss": 0.2},
        "healed": False,
    },
]


def test_a_row_has_a_column_for_each_parameter() -> None:
    first, second = map(trial_row, TRIALS)
    names = columns_of([first, second])
    assert names[:5] == ["number", "state", "value", "params.lr", "params.act"]
    assert names[-5:] == ["params.depth", "metrics.loss", "metrics.train_loss", "origin", "healed"]
    assert first["params.layers.0.width"] == 8 and first["params.kernel"] == [3, 3] and "params.depth" not in first
    assert second["metrics.loss"] == 0.7 and second["value"] is None
    assert "id" not in first and "plan" not in first
