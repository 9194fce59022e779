"""Step 7: asks for new candidates, and stores those that were proposed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from scamp_service.control.decide.effects import CreateTrials, Effect, NoteRegret, Propose
from scamp_service.control.decide.finish import waiting_for_devices
from scamp_service.control.decide.snapshot import Snapshot
from scamp_service.search.proposer import Proposal, ProposalRequest


def propose(s: Snapshot, promoted: Mapping[int, int]) -> Iterator[Effect]:
    """Propose as many candidates as there is ``room`` for, besides the paused trials of a study that were ``promoted``.

    An answer counts only if it begins with the study's next number. The sampler is asked again if it has failed. In
    one-shot search nothing is proposed that depends on trials that have not ended.
    """
    may_still_train = {trial.study_id for trial in s.trials} | set(waiting_for_devices(s))
    for study in s.studies.values():
        if not study.wants_trials:
            continue
        progress, one_shot = study.progress, study.search.one_shot
        count = min(s.room(study.id) - promoted.get(study.id, 0), study.budget.trials - progress.num_trials)
        if one_shot is not None:
            count = min(count, one_shot.num_until_wait(progress.num_trials))
            if one_shot.waits(progress.num_trials) and study.id in may_still_train:
                continue
        if count <= 0:
            continue
        match s.requests.get(study.id):
            case ProposalRequest(progress.num_trials, answer=None):
                pass
            case ProposalRequest(progress.num_trials, answer=Proposal(regret=float(regret))) if (
                regret != progress.regret_bound
            ):
                yield NoteRegret(study.id, regret)  # it may end the study, before there are more trials
            case ProposalRequest(progress.num_trials, answer=Proposal(candidates, is_last, parents, reasons=reasons)):
                is_last = is_last and len(candidates) <= count
                yield CreateTrials(
                    study.id, progress.num_trials, candidates[:count], is_last, parents[:count], reasons[:count]
                )
            case _:
                yield Propose(study.id, progress.num_trials, count)
