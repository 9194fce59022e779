"""Changes the parameters of a trial for a copy of it, as population based training and evolution do."""

from __future__ import annotations

import random
from functools import cached_property

from scamp_service.search.constrained import Constrained
from scamp_service.search.moves import nearest, uniform
from scamp_service.search.samplers.sampler import seed_of
from scamp_service.search.space import Space
from scamp_service.study.spaces.slots import Slot
from scamp_service.study.spaces.space import Categorical, Ordinal, Range
from scamp_service.study.spec import StudySpec
from scamp_service.study.stopping import PopulationOptions
from scamp_service.study.values import Params

MOST_TRIES = 100
"""Changes that are tried before a copy keeps the parameters of its donor."""


def perturbation_of(spec: StudySpec) -> Perturbation | None:
    """How copies differ from their donors; None in a study whose rules copy no trial."""
    rule = next((rule for rule in spec.stopping_rules if isinstance(rule, PopulationOptions)), None)
    return Perturbation(spec, rule) if rule else None


class Perturbation:
    """Perturbs the parameters in ``mutate`` of a study's rule. The seed and a number decide how."""

    def __init__(self, spec: StudySpec, rule: PopulationOptions) -> None:
        self._spec, self._rule = spec, rule

    @cached_property
    def _space(self) -> Space:
        return Space(self._spec.space)

    @cached_property
    def _constrained(self) -> Constrained:
        return Constrained(self._spec)

    def __call__(self, params: Params, number: int) -> Params:
        """The parameters of a copy of the trial with ``params``, which takes the place of trial ``number``.

        They are unchanged if the constraints allow no others.
        """

        def changed(attempt: int) -> Params:
            source = random.Random(seed_of(self._spec.search.seed, number, attempt))
            values = self._space.flat(params)
            for slot in self._space.slots:
                if slot.name in self._rule.mutate and slot.name in values:
                    values[slot.name] = self._changed(slot, values[slot.name], source)
            return {**params, **self._space.nested(values)}

        return next(filter(self._constrained.holds, map(changed, range(MOST_TRIES))), params)

    def _changed(self, slot: Slot, value: object, source: random.Random) -> object:
        dimension, is_new = slot.dimension, source.random() < self._rule.resample
        match dimension:
            case Categorical():
                return source.choice(dimension.choice) if is_new else value
            case Ordinal():
                last = len(dimension.ordinal) - 1
                index = source.randint(0, last) if is_new else dimension.index(value) + source.choice((-1, 1))
                return dimension.value(min(last, max(0, index)))
        assert isinstance(dimension, Range) and isinstance(value, int | float)
        if is_new:
            return nearest(dimension, uniform(dimension, source.random()))
        return nearest(dimension, value * float(source.choice(self._rule.factors)))
