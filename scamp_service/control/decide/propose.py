"""Step 6: asks for new candidates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from scamp_service.control.decide.effects import Effect, Propose
from scamp_service.control.decide.snapshot import Snapshot
from scamp_service.lifecycle import TrialState


def propose(s: Snapshot) -> Iterator[Effect]:
    """Keep as many candidates pending as there are devices, but at least four. More would be worse: the later the
    sampler proposes, the more results it knows.
    """
    pending = Counter(t.study_id for state in (TrialState.WAITING, TrialState.QUEUED) for t in s.in_state(state))
    for study in s.studies.values():
        if not study.wants_trials:
            continue
        room = max(4, len(s.cluster.devices)) - pending[study.id]
        count = min(room, study.max_trials - study.num_trials)
        if count > 0:
            yield Propose(study.id, study.num_trials, count)
