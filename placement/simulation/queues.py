"""The waiting jobs of a simulation, by study: the part of them that is nominated in a round, in the order of fairness.

Studies take turns, the one with the fewest running trials first, each with its oldest: the order of
``scamp_service.control.decide.place``. A live queue is short too, since samplers propose as devices become free.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice

from placement.model import Queued
from placement.packing.turns import PASSES_BEFORE_RESERVATION, passed_over


class Queues:
    """Waiting jobs, and the number of running ones by study."""

    def __init__(self, most_running: Mapping[int, int]) -> None:
        """``most_running`` limits the running jobs of a study; one that it leaves out has no limit."""
        self._most_running = most_running
        self._waiting: dict[int, OrderedDict[str, Queued]] = {}
        self._running: Counter[int] = Counter()
        self._studies: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def add(self, queued: Queued) -> None:
        """Enter a job, behind the others of its study."""
        self._waiting.setdefault(queued.study, OrderedDict())[queued.id] = queued
        self._studies[queued.id] = queued.study

    def started(self, job: str) -> None:
        """A waiting job has started."""
        study = self._studies[job]
        del self._waiting[study][job]
        self._running[study] += 1

    def runs(self, job: str, study: int) -> None:
        """A job runs from the beginning."""
        self._studies[job] = study
        self._running[study] += 1

    def ended(self, job: str) -> None:
        """A running job has ended."""
        self._running[self._studies.pop(job)] -= 1

    def nominated(self, most: int) -> list[Queued]:
        """The first ``most`` waiting jobs."""
        own = [study for study, waiting in self._waiting.items() if waiting]
        return list(islice(self._turns(own), most))

    def _turns(self, studies: Iterable[int]) -> Iterator[Queued]:
        iterators = {study: iter(self._waiting[study].values()) for study in studies}
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
                self._waiting[queued.study][queued.id] = replace(queued, passed_over=passes)
