"""The waiting jobs of a simulation, by study: the part of them that is nominated in a round, in the order of fairness.

A part has equally many of each study and of each number of ranks, so that wide jobs that wait do not hide others.
Studies take turns, the one with the fewest running trials first, each with its oldest: the order of
``scamp_service.control.decide.place``. A live queue is short too, since samplers propose as devices become free.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from operator import attrgetter

from placement.model import Queued
from placement.packing.turns import PASSES_BEFORE_RESERVATION, passed_over


class Queues:
    """Waiting jobs, and the number of running ones by study."""

    def __init__(self, most_running: Mapping[int, int]) -> None:
        """``most_running`` limits the running jobs of a study; one that it leaves out has no limit."""
        self._most_running = most_running
        self._waiting: dict[int, dict[int, OrderedDict[str, Queued]]] = {}  # study → ranks → jobs
        self._running: Counter[int] = Counter()
        self._studies: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(len(waiting) for of_study in self._waiting.values() for waiting in of_study.values())

    def add(self, queued: Queued) -> None:
        """Enter a job, behind the others of its study."""
        self._of(queued)[queued.id] = queued
        self._studies[queued.id] = queued.study

    def started(self, queued: Queued) -> None:
        """A waiting job has started."""
        del self._of(queued)[queued.id]
        if not any(self._waiting[queued.study].values()):
            del self._waiting[queued.study]
        self._running[queued.study] += 1

    def runs(self, job: str, study: int) -> None:
        """A job runs from the beginning."""
        self._studies[job] = study
        self._running[study] += 1

    def ended(self, job: str) -> None:
        """A running job has ended."""
        self._running[self._studies.pop(job)] -= 1

    def nominated(self, most: int) -> list[Queued]:
        """About ``most`` waiting jobs, or all if there are no more, in the order in which to place them."""
        parts = sum(bool(waiting) for of_study in self._waiting.values() for waiting in of_study.values())
        return list(self._turns(-(-most // max(1, parts))))

    def _of(self, queued: Queued) -> OrderedDict[str, Queued]:
        ranks = queued.shapes[0].num_ranks
        return self._waiting.setdefault(queued.study, {}).setdefault(ranks, OrderedDict())

    def _turns(self, most: int) -> Iterator[Queued]:
        iterators = {
            study: heapq.merge(*(islice(jobs.values(), most) for jobs in of_study.values()), key=attrgetter("arrival"))
            for study, of_study in self._waiting.items()
        }
        turns = [(self._running[study], study) for study in iterators]
        heapq.heapify(turns)
        while turns:
            turn, study = turns[0]
            limit = self._most_running.get(study)
            queued = next(iterators[study], None) if limit is None or turn < limit else None
            if queued is None:
                heapq.heappop(turns)
                continue
            yield queued
            heapq.heapreplace(turns, (turn + 1, study))

    def note_passes(self, nominated: Collection[Queued], started: Collection[str]) -> None:
        """Count how often those that still wait have been passed over, as the controller does."""
        if not started or len(started) == len(nominated):
            return
        counts = passed_over(nominated, started)
        for queued in nominated:
            passes = min(PASSES_BEFORE_RESERVATION, counts.get(queued.id, queued.passed_over))
            if queued.id not in started and passes != queued.passed_over:
                self._of(queued)[queued.id] = replace(queued, passed_over=passes)
