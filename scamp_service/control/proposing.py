"""Asks samplers for candidates on behalf of the controller, and says which of them take too long.

Samplers run elsewhere (``search.proposer``). A new controller asks again: a proposal that was lost costs only its time.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

from scamp_service.control.projection import Projection
from scamp_service.search.proposals import reads_history
from scamp_service.search.proposer import Proposal, ProposalRequest, Proposer, SearchEnded
from scamp_service.study.spec import StudySpec

SLOW_SECONDS = 30.0
"""The dashboard shows that a sampler has not answered for this long."""
HUNG_SECONDS = 600.0
"""A study is stopped when its sampler has not answered for this long."""


class Proposing:
    """The requests to the samplers of all studies."""

    def __init__(self, projection: Projection, proposer: Proposer) -> None:
        self._projection, self._proposer = projection, proposer
        self._exhausted: set[int] = set()
        self._slow: set[int] = set()

    def requests(self) -> Mapping[int, ProposalRequest]:
        """Study → what its sampler was asked for, until the answer is stored or it is asked again."""
        return self._proposer.requests()

    def unanswered(self) -> set[int]:
        """Studies whose sampler still works, or has failed and was not asked again yet."""
        return {
            study for study, request in self._proposer.requests().items() if not isinstance(request.answer, Proposal)
        }

    def is_exhausted(self, study_id: int) -> bool:
        """Whether the last candidates of the sampler are stored."""
        return study_id in self._exhausted

    def ask(self, study_id: int, spec: StudySpec, first_number: int, count: int) -> None:
        """Ask for candidates. Raises the error of the sampler if this is another try after one."""
        before = self._proposer.requests().get(study_id)
        if not self._proposer.remembers(study_id):
            self._projection.forget_study(study_id)
        changed = self._projection.changed_trials(study_id) if reads_history(spec) else ()
        self._proposer.request(study_id, spec, changed, first_number, count)
        if before is not None and isinstance(before.answer, Exception):
            raise before.answer

    def stored(self, study_id: int, is_last: bool) -> None:
        """Note that the answer has been stored."""
        self._proposer.forget(study_id)
        if is_last:
            self._exhausted.add(study_id)

    def forget_ended(self, live_studies: Container[int]) -> None:
        """Drop what is known of studies that are not among ``live_studies``."""
        self._proposer.forget_ended(live_studies)

    def newly_slow(self) -> Iterator[tuple[int, str]]:
        """Studies whose sampler has become slow since the last call, each with the words for it."""
        before, self._slow = self._slow, set()
        for study_id, request in self._proposer.requests().items():
            if request.answer is None and request.seconds >= SLOW_SECONDS:
                self._slow.add(study_id)
                if study_id not in before:
                    yield study_id, f"the sampler has not answered for {SLOW_SECONDS:.0f} s; other studies continue"


def why_hung(request: ProposalRequest | None) -> str:
    """Why a study must be stopped whose sampler was asked for this; empty if it need not."""
    if request is None or request.answer is not None or request.seconds < HUNG_SECONDS:
        return ""
    minutes = f"{HUNG_SECONDS / 60:.0f} minutes"
    return f"its sampler was asked for trial {request.first_number} and has not answered for {minutes}"


def why_ended(request: ProposalRequest | None) -> str:
    """Why a study must be stopped whose search has ended with an error; empty if it need not be."""
    return str(request.answer) if request is not None and isinstance(request.answer, SearchEnded) else ""
