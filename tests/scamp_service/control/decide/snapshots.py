"""Small snapshots for the tests of the decisions, and the effects that follow from them."""

from __future__ import annotations

from dataclasses import replace
from inspect import signature
from typing import Any

from estimators.learning import Ending, PastAttempt
from estimators.model import MIB, Layout
from placement.model import Cluster, Device
from scamp_service.control.decide import decide, effects
from scamp_service.control.decide.snapshot import Packing, Snapshot
from scamp_service.control.decide.study_rules import Progress, Search, Sharing, StudyRules
from scamp_service.control.executor import GangState, GangStatus
from scamp_service.control.stopping.successive_halving import SuccessiveHalving
from scamp_service.lifecycle import StudyState
from scamp_service.model import Attempt, Trial
from scamp_service.study.budget import Budget
from scamp_service.study.objective import Objective
from scamp_service.study.objectives import Objectives

CLUSTER = Cluster(tuple(Device(f"n/{i}", "n", i, "virtual", 96) for i in range(4)))
ALIVE = GangStatus(GangState.ALIVE)
FAILED = PastAttempt(1, Layout(), ("virtual",), 20 * MIB, 0, 24 * MIB, 30 * MIB, Ending.OUT_OF_MEMORY, study_id=7)


def study(**changes: Any) -> StudyRules:
    """Rules of a small study with these changes, each named by a field of the rules or of one of their parts."""
    rules = StudyRules(
        id=1, workload="vit_digits", code=None, seed=0, report_every=10, stopping=SuccessiveHalving((10, 30), 3),
        objectives=Objectives((Objective(metric="accuracy"),)),
        budget=_part(Budget, changes, trials=10, steps=100, max_lost=2, max_oom=3),
        progress=_part(Progress, changes, state=StudyState.RUNNING, num_trials=10),
        search=_part(Search, changes), sharing=_part(Sharing, changes),
    )  # fmt: skip
    return replace(rules, **changes)


def _part(kind: Any, changes: dict[str, Any], **usual: Any) -> Any:
    """A value of this kind with its fields among the changes, which are taken out of them."""
    return kind(**usual | {name: changes.pop(name) for name in signature(kind).parameters if name in changes})


def effects_of(*, trials: list[Trial], attempts: list[Attempt] | None = None, **fields: Any) -> list[effects.Effect]:
    """Effects that follow from a small snapshot; its fields may be those of its packing, too."""
    packing = _part(Packing, fields)
    fields = {"now": 1.0, "packing": packing, "studies": {1: study()}, "gangs": {}, "cluster": CLUSTER, **fields}
    return decide(Snapshot(trials=trials, attempts=attempts or [], **fields))


def only_move(decided: list[effects.Effect]) -> effects.MoveTrial:
    moves = [effect for effect in decided if isinstance(effect, effects.MoveTrial)]
    assert len(moves) == 1, decided
    return moves[0]
