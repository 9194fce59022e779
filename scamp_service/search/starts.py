"""The candidates of ``start_with``, which every study tries before those of its sampler."""

from __future__ import annotations

from scamp_service.search.constrained import Constrained
from scamp_service.search.samplers.random_sampler import RandomSampler
from scamp_service.search.space import Space
from scamp_service.study.spec import StudySpec
from scamp_service.study.values import Params


class Starts:
    """The first candidates of a study by trial number. Parameters that the user has left out are random."""

    def __init__(self, spec: StudySpec) -> None:
        self._spec, self._space, self._random = spec, Space(spec.space), RandomSampler(spec)
        self._constrained = Constrained(spec)

    def __len__(self) -> int:
        return len(self._spec.start_with)

    def __getitem__(self, number: int) -> Params:
        """All parameters of trial ``number``. Raises ``NoCandidate`` if none satisfy the constraints."""
        start = self._spec.start_with[number]
        params = self._space.exact(start)
        others = {name: value for name, value in start.items() if name not in self._spec.space}
        proposed = self._random.suggest(number, fixed=params)
        place = f"start_with[{number}]"
        return {**self._spec.fixed, **self._constrained.completed(number, params, proposed, others, place)}
