"""Runs samplers in threads beside the controller's, so that a slow one does not hold up its loop.

Those that may hang, and those of users, run in processes, and a thread waits for each (``remote_search``).

It implements the ``Proposer`` of ``search.proposer``. Whether an answer is still wanted is decided elsewhere.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from scamp_service.search.history import Observation, Past
from scamp_service.search.proposals import Search, needs_own_process
from scamp_service.search.proposer import Proposal, ProposalRequest
from scamp_service.search.running.filtered import FilteredSearch
from scamp_service.search.running.one_shot import OneShotSearch
from scamp_service.search.running.remote_search import RemoteSearch
from scamp_service.study.spec import StudySpec
from scamp_service.study.values import Params

PATIENCE_SECONDS = 10.0
"""A sampler that takes longer does not keep those of other studies from starting."""


AnySearch = Search | RemoteSearch | FilteredSearch | OneShotSearch


@dataclass(slots=True, eq=False)
class _Job:
    study_id: int
    spec: StudySpec
    search: AnySearch | None  # with what it remembers; None: a new one
    changed: Iterable[Past]
    first_number: int
    count: int
    answer: Proposal | Exception | None = None


def _no_scores(study_id: int, spec: StudySpec, candidates: Sequence[Params]) -> Sequence[float | None]:
    return [None] * len(candidates)


class ThreadProposer:
    """Runs the samplers of at most ``workers`` studies at once, in the order in which they ask.

    A sampler that takes longer than ``PATIENCE_SECONDS`` continues, but others start beside it. Its answer counts
    unless the study has asked for something else meanwhile: then its process is ended, if it has one. A thread cannot
    be ended. ``code_of`` returns the zip of the user's files of a study, ``earlier_of`` the trials of earlier studies
    that count as its history, and ``score_of`` the value of its filter's proxy for each of some candidates.
    """

    def __init__(
        self,
        workers: int = 2,
        *,
        code_of: Callable[[int], bytes | None] = lambda study_id: None,
        earlier_of: Callable[[int, StudySpec], Sequence[Observation]] = lambda study_id, spec: (),
        score_of: Callable[[int, StudySpec, Sequence[Params]], Sequence[float | None]] = _no_scores,
        has_news: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``has_news`` is called, in any thread, when a sampler has answered."""
        self._workers, self._has_news, self._monotonic = workers, has_news, monotonic
        self._code_of, self._earlier_of, self._score_of = code_of, earlier_of, score_of
        self._lock = threading.Lock()
        self._asked: dict[int, _Job] = {}
        self._waiting: deque[_Job] = deque()
        self._running: dict[_Job, float] = {}  # with the time since when
        self._searches: dict[int, AnySearch] = {}  # of studies without a job; one whose sampler failed is dropped

    def request(self, study_id: int, spec: StudySpec, changed: Iterable[Past], first_number: int, count: int) -> None:
        """Ask for ``count`` candidates, and drop what the study has asked for before."""
        with self._lock:
            job = _Job(study_id, spec, self._searches.pop(study_id, None), changed, first_number, count)
            self._asked[study_id] = job
            self._waiting.append(job)
            self._start_some()
            outdated = self._outdated()
        _close(outdated)

    def requests(self) -> Mapping[int, ProposalRequest]:
        """Study → what it has asked for last. Regular calls also start samplers beside those that take long."""
        with self._lock:
            self._start_some()
            now = self._monotonic()
            return {
                study_id: ProposalRequest(job.first_number, now - self._running.get(job, now), job.answer)
                for study_id, job in self._asked.items()
            }

    def remembers(self, study_id: int) -> bool:
        """Whether the trials of earlier requests are known."""
        with self._lock:
            return study_id in self._searches

    def forget(self, study_id: int) -> None:
        """Drop what the study has asked for, with its answer."""
        with self._lock:
            self._asked.pop(study_id, None)

    def forget_ended(self, live_studies: Container[int]) -> None:
        """Drop all that is known of studies that are not among ``live_studies``."""
        with self._lock:
            outdated = []
            for study_id in [each for each in (*self._asked, *self._searches) if each not in live_studies]:
                self._asked.pop(study_id, None)
                outdated.append(self._searches.pop(study_id, None))
            outdated += self._outdated()
        _close(outdated)

    def close(self) -> None:
        """End the processes of samplers."""
        self.forget_ended(())

    def _outdated(self) -> list[AnySearch | None]:
        """Searches that work on something that nobody waits for any more."""
        return [job.search for job in self._running if self._asked.get(job.study_id) is not job]

    def _start_some(self) -> None:
        now = self._monotonic()
        num_busy = sum(now - since <= PATIENCE_SECONDS for since in self._running.values())
        while self._waiting and num_busy < self._workers:
            job = self._waiting.popleft()
            if self._asked.get(job.study_id) is not job:
                continue  # forgotten meanwhile
            self._running[job] = now
            threading.Thread(target=self._work, args=(job,), name="sampler", daemon=True).start()
            num_busy += 1

    def _work(self, job: _Job) -> None:
        search = None
        try:
            search = self._search(job)
            candidates = search.propose(job.changed, job.first_number, job.count)
            answer: Proposal | Exception = Proposal(
                candidates, len(candidates) < _most_candidates(job), search.parents, search.regret, search.reasons
            )
        except Exception as error:
            answer = error
        except BaseException as error:  # such as SystemExit: it would end this thread alone, and nobody would answer
            answer = RuntimeError(f"the sampler raised {type(error).__name__}: {error}")
        with self._lock:
            del self._running[job]
            if self._asked.get(job.study_id) is job:
                job.answer = answer
                if search is not None and isinstance(answer, Proposal):
                    self._searches[job.study_id], search = search, None
            self._start_some()
        self._has_news()
        _close([search])

    def _search(self, job: _Job) -> AnySearch:
        """The search of a job, which others may close from now on."""
        if job.search is None:
            earlier = self._earlier_of(job.study_id, job.spec) if job.spec.search.history else ()
            if needs_own_process(job.spec):
                search: Search | RemoteSearch = RemoteSearch(job.spec, self._code_of(job.study_id), earlier)
            else:
                search = Search(job.spec, None, earlier)
            wrapped: AnySearch = search
            if job.spec.search.filter is not None:
                wrapped = FilteredSearch(
                    search, job.spec.search.filter, partial(self._score_of, job.study_id, job.spec)
                )
            if job.spec.search.one_shot is not None:
                wrapped = OneShotSearch(job.spec, job.spec.search.one_shot, wrapped)
            with self._lock:
                job.search = wrapped
                is_outdated = self._asked.get(job.study_id) is not job
            if is_outdated:
                wrapped.close()
        assert job.search is not None
        return job.search


def _most_candidates(job: _Job) -> int:
    """Most candidates of an answer."""
    return min(1, job.count) if job.spec.search.filter else job.count


def _close(searches: Iterable[AnySearch | None]) -> None:
    for search in searches:
        if search is not None:
            search.close()
