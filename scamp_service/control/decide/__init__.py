"""Decides what must be done next from a snapshot of the present state: find → **decide** → apply.

Pure. Every rule looks only at the present state, never at how it came about. So a decision may be lost, repeated, or
made by another controller after a crash: the next tick decides again from the database. Each step has its own file, and
what several of them share is in ``rules``. Not here: proposing values (``search``), sizing (``sizing``) and applying
effects (``control.controller``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache

from estimators.learning import Learned, PastAttempt, learn
from estimators.model import Layout
from scamp_service.control.decide.effects import Effect, MoveTrial
from scamp_service.control.decide.fence import fence_unknown_gangs
from scamp_service.control.decide.finish import finish_studies
from scamp_service.control.decide.follow import follow_attempts
from scamp_service.control.decide.place import place_queued
from scamp_service.control.decide.preempt import make_room
from scamp_service.control.decide.promote import promote
from scamp_service.control.decide.propose import propose
from scamp_service.control.decide.redivide import redivide_running, redivided_studies
from scamp_service.control.decide.replan import widen_running
from scamp_service.control.decide.size import size_waiting
from scamp_service.control.decide.snapshot import Corrections, Snapshot
from scamp_service.lifecycle import TrialState


def decide(snapshot: Snapshot) -> list[Effect]:
    """The effects of one cycle, to be applied in this order."""
    kinds = frozenset(device.kind for device in snapshot.cluster.devices)
    learned: Corrections = {family: _learned(tuple(runs), kinds) for family, runs in snapshot.past.items()}
    effects: list[Effect] = []
    effects += fence_unknown_gangs(snapshot)  # 1. gangs that the database does not know
    effects += follow_attempts(snapshot)  # 2. outcomes, losses, rungs, teardown
    effects += size_waiting(snapshot, learned)  # 3. a plan for every candidate, or the reason that it has none
    placed = list(place_queued(snapshot, learned))
    effects += placed  # 4. gangs onto devices
    if all(isinstance(effect, MoveTrial) and effect.to is TrialState.QUEUED for effect in placed):
        # 4. Where nothing else changes, running trials make room: those of lower priority, or those that can move.
        stopped = list(make_room(snapshot, learned))
        effects += stopped or redivide_running(snapshot, learned)  # 5. or get more or fewer devices
    effects += widen_running(snapshot, redivided_studies(snapshot))  # 5. running trials onto idle devices
    promoted = list(promote(snapshot))
    effects += promoted  # 6. paused trials that continue or end
    continuing = [effect for effect in promoted if isinstance(effect, MoveTrial) and effect.to is TrialState.QUEUED]
    effects += propose(snapshot, Counter(effect.trial.study_id for effect in continuing))  # 7. new candidates
    effects += finish_studies(snapshot)  # 8. studies that have ended
    return effects


@lru_cache(maxsize=64)
def _learned(runs: tuple[PastAttempt, ...], kinds: frozenset[str]) -> Mapping[Layout, Learned]:
    """Most cycles have the runs of the cycle before."""
    return learn(runs, kinds)
