"""Step 6: asks for new candidates, and stores those that were proposed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from scamp_service.control.decide.effects import CreateTrials, Effect, Propose
from scamp_service.control.decide.snapshot import Snapshot
from scamp_service.lifecycle import TrialState
from scamp_service.search.proposer import Asked, Proposal


def propose(s: Snapshot) -> Iterator[Effect]:
    """Keep as many candidates pending as there are devices, but at least four. More would be worse: the later the
    sampler proposes, the more results it knows.

    An answer counts only if it begins with the study's next number. The sampler is asked again if it has failed.
    """
    pending = Counter(t.study_id for state in (TrialState.WAITING, TrialState.QUEUED) for t in s.in_state(state))
    for study in s.studies.values():
        if not study.wants_trials:
            continue
        room = max(4, len(s.cluster.devices)) - pending[study.id]
        count = min(room, study.max_trials - study.num_trials)
        if count <= 0:
            continue
        match s.asked.get(study.id):
            case Asked(study.num_trials, answer=None):
                pass
            case Asked(study.num_trials, answer=Proposal(candidates, is_last)):
                is_last = is_last and len(candidates) <= count
                yield CreateTrials(study.id, study.num_trials, candidates[:count], is_last)
            case _:
                yield Propose(study.id, study.num_trials, count)
