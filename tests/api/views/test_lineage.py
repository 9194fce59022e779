"""Which trials a lineage shows, and in which order."""

from __future__ import annotations

from types import SimpleNamespace

from api.views.lineage import COLUMNS, chosen, lineage_view
from scamp_service.lifecycle import Origin, TrialState
from scamp_service.study.objective import Objective

LOSS = Objective(metric="loss", direction="minimize")


def trial(number: int, value: float | None, parent: int | None = None) -> SimpleNamespace:
    columns = (TrialState.COMPLETED, Origin.BRANCH, value, 10, parent, None if parent is None else 5)
    return SimpleNamespace(number=number, **dict(zip(COLUMNS, columns, strict=True)))


#  0 ─┬ 3 ── 5     1 ── 4     2 has no relatives; 6 is a copy of a trial that is gone
#     └ 7
FAMILY = [
    trial(0, 0.9),
    trial(1, 0.5),
    trial(2, 0.0),
    trial(3, None, 0),
    trial(4, 0.4, 1),
    trial(5, 0.1, 3),
    trial(6, 0.2, 99),
    trial(7, float("nan"), 0),
]


def test_the_family_with_the_best_trial_comes_first_and_copies_follow_their_parent() -> None:
    num, members = chosen(FAMILY, LOSS, 100)
    assert num == 6
    assert [member.number for member in members] == [0, 3, 5, 7, 1, 4]


def test_the_best_stay_with_all_their_ancestors() -> None:
    assert [member.number for member in chosen(FAMILY, LOSS, 3)[1]] == [0, 3, 5]
    assert [member.number for member in chosen(FAMILY, LOSS, 1)[1]] == [0, 3, 5], (
        "the best is never cut off from its line"
    )
    assert chosen([trial(0, 1.0)], LOSS, 10) == (0, [])


def test_changes_name_nested_and_missing_parameters() -> None:
    params = {
        0: {"lr": 0.1, "layers": [{"op": "conv"}], "same": 1},
        3: {"lr": 0.2, "layers": [{"op": "mlp"}, {"op": "mlp"}], "same": 1, "momentum": 0.9},
    }
    _, copy = lineage_view(2, [trial(0, 1.0), trial(3, 1.0, 0)], params).items
    assert [(change.name, change.before, change.after) for change in copy.changes] == [
        ("lr", 0.1, 0.2),
        ("layers.0.op", "conv", "mlp"),
        ("layers.1.op", None, "mlp"),
        ("momentum", None, 0.9),
    ]
