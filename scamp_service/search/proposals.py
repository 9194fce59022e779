"""Proposes candidates: first those of ``start_with``, then those of the study's sampler.

A proposal depends only on the spec, the trial's number and the history. So a controller that replaces a killed one
proposes the same candidates. Whether a candidate fits is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from scamp_service.lifecycle import Origin
from scamp_service.search.constrained import Constrained
from scamp_service.search.earlier import with_own_seed
from scamp_service.search.grid import Grid
from scamp_service.search.history import Active, History, Observation, Past, Shown
from scamp_service.search.priors import Priors
from scamp_service.search.regret import RegretBound
from scamp_service.search.samplers.evolution import Evolution
from scamp_service.search.samplers.optuna_samplers import BruteForce, CmaEs, Gp, Nsga2, Nsga3, Qmc, Tpe
from scamp_service.search.samplers.random_sampler import RandomSampler
from scamp_service.search.samplers.sampler import Inheriting, Sampler
from scamp_service.search.samplers.tune_searcher import TuneSearcher
from scamp_service.search.space import Space
from scamp_service.search.starts import Starts
from scamp_service.study.spaces.slots import is_candidate, slots_of
from scamp_service.study.spec import StudySpec
from scamp_service.study.values import Params

SAMPLERS: Mapping[str, type[Sampler]] = {
    "tpe": Tpe,
    "random": RandomSampler,
    "grid": Grid,
    "qmc": Qmc,
    "gp": Gp,
    "cmaes": CmaEs,
    "nsga2": Nsga2,
    "nsga3": Nsga3,
    "brute_force": BruteForce,
    "tune": TuneSearcher,
    "evolution": Evolution,
}
"""The sampler with each name that a spec may have."""


def reads_history(spec: StudySpec) -> bool:
    """Whether proposals for a study depend on its earlier trials."""
    sampler = SAMPLERS.get(spec.search.sampler.name)
    needs_results = spec.search.one_shot is not None or spec.budget.terminator is not None
    return sampler is None or sampler.reads_history or needs_results


def needs_own_process(spec: StudySpec) -> bool:
    """Whether the study's sampler runs in a process of its own. The bound on the regret imports torch, too."""
    sampler = SAMPLERS.get(spec.search.sampler.name)
    return sampler is None or sampler.needs_own_process or spec.budget.terminator is not None


class Search:
    """Proposes the candidates of one study. It remembers the trials that it was given."""

    def __init__(
        self,
        spec: StudySpec,
        make: Callable[[StudySpec], Sampler] | None = None,
        earlier: Sequence[Observation] = (),
    ) -> None:
        """``make`` returns a sampler from the user's own file, and ``earlier`` are trials of earlier studies."""
        spec = with_own_seed(spec, earlier)
        self._earlier, self._priors = earlier, Priors(spec)
        self._spec, self._starts = spec, Starts(spec)
        self._sampler = (make or SAMPLERS[spec.search.sampler.name])(spec)
        self._history = History(spec.every_objective, spec.predicted)
        self._constrained = Constrained(spec)
        self._slots, self._space = slots_of(spec.space), Space(spec.space)
        self._earlier_params = [self._space.flat(trial.params) for trial in earlier]
        self._regret_bound = RegretBound(spec)
        self.regret: float | None = None
        """Bound on the regret when it was asked last; None if there is nothing new to say."""
        self.reasons: Sequence[str] = ()
        """Why each candidate that was proposed last was chosen; empty: its sampler has proposed it, and nobody else."""
        self.parents: Sequence[int | None] = ()
        """For each candidate that was proposed last the trial with whose weights it begins; empty if none has one."""

    def propose(self, history: Iterable[Past], first_number: int, count: int, picks: int = 1) -> list[Params]:
        """Parameters of proposals ``first_number``, ``first_number + 1``, …; fewer than ``count`` at the sampler's end.

        With several ``picks`` it returns as many proposals for the trial ``first_number`` alone, to choose from; only
        one for a trial of ``start_with``.

        Proposals have the numbers of their trials, unless there are trials that the sampler has not proposed.

        ``history`` holds at least the trials that are new or have changed since the last call, in any order. The others
        are remembered. Trials from ``first_number`` on are ignored. Raises ``NoCandidate``.
        """
        shown = Shown()
        if self._sampler.reads_history or self._regret_bound.is_wanted:
            for past in history:
                self._history.count(past)
                if past.origin is not Origin.EXTERNAL or is_candidate(self._slots, past.params):
                    self._history.learn(past)
            shown = self._history.shown(first_number + self._history.num_beside, self._sampler.shows_most)
        self.regret = self._regret_bound.of(shown.completed)
        if not self._sampler.reads_history:
            shown = Shown()
        if picks > 1:
            num_picks = 1 if first_number < len(self._starts) else picks
            completed = [*self._earlier, *shown.completed]
            candidates = [self._candidate(first_number, completed, shown.active, pick) for pick in range(num_picks)]
            self.parents = _none_or_parents([parent for params, parent in candidates if params is not None])
            return [params for params, _ in candidates if params is not None]
        proposed, parents, active = list[Params](), list[int | None](), list(shown.active)
        for number in range(first_number, first_number + count):
            params, parent = self._candidate(number, [*self._earlier, *shown.completed], active)
            if params is None:
                break
            proposed.append(params)
            parents.append(parent)
            active.append(Active(number + self._history.num_beside, params))
        self.parents = _none_or_parents(parents)
        return proposed

    def close(self) -> None:
        """Do nothing: it runs in this process."""

    def _candidate(
        self, number: int, completed: Sequence[Observation], active: Sequence[Active], pick: int = 0
    ) -> tuple[Params | None, int | None]:
        """The parameters of a candidate, None if there are no more, and the number of its parent."""
        if number < len(self._starts):
            return self._starts[number], None
        last = 0

        def suggest(attempt: int) -> Params | None:
            nonlocal last
            last = attempt
            params = self._sampler.suggest(number, completed, active, attempt)
            place = number - len(self._starts)
            return None if params is None else self._priors.applied(place, number, params, attempt)

        repaired = self._constrained.repaired(number, suggest, pick, self._is_earlier)
        if repaired is None:
            return None, None
        parent = self._sampler.parent(number, completed, last) if isinstance(self._sampler, Inheriting) else None
        return {**self._spec.fixed, **repaired}, parent

    def _is_earlier(self, params: Params) -> bool:
        """Whether an earlier study has tried these parameters."""
        return bool(self._earlier_params) and self._space.flat(params) in self._earlier_params


def _none_or_parents(parents: Sequence[int | None]) -> Sequence[int | None]:
    return parents if any(parent is not None for parent in parents) else ()
