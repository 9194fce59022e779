"""Draws candidates from what the user believes: the priors of parameters.

The first candidate of the sampler gets the believed values themselves. Of the next nine about half are drawn from
the priors, and later ever fewer (with a chance of 5 / k for the k-th), so that a wrong belief costs little. The others
are the sampler's, and it learns from all of them.
"""

from __future__ import annotations

import math
import random
from typing import Any

from scamp_service.search.draws import draw_from
from scamp_service.search.samplers.sampler import seed_of
from scamp_service.search.space import Space
from scamp_service.study.spaces.slots import slots_of
from scamp_service.study.spaces.space import Categorical, Ordinal, Prior, Range
from scamp_service.study.spec import StudySpec
from scamp_service.study.values import Params

HALF_UNTIL = 10
"""From this candidate on, fewer than half are drawn from the priors."""
BELIEF = 0.5
"""Probability of the believed choice in such a draw; the others share the rest."""
_OFFSET = 2**20  # attempts of samplers have smaller numbers, so their seeds differ


class Priors:
    """The priors of a study."""

    def __init__(self, spec: StudySpec) -> None:
        self._seed, self._space = spec.search.seed, Space(spec.space)
        slots = slots_of(spec.space)
        self._dimensions = {slot.name: slot.dimension for slot in slots if slot.dimension.prior is not None}

    def applied(self, index: int, number: int, proposed: Params, attempt: int) -> Params:
        """The sampler's proposal for trial ``number``, or with parameters from the priors in their place.

        ``index`` counts the sampler's proposals from 0.
        """
        source = random.Random(seed_of(self._seed, number, _OFFSET + attempt))
        share = 1.0 if index == 0 else min(0.5, HALF_UNTIL / 2 / index)
        if not self._dimensions or source.random() >= share:
            return proposed
        is_center = index == 0 and attempt == 0
        believed = {name: _draw(dimension, source, is_center) for name, dimension in self._dimensions.items()}
        params = {**self._space.flat(proposed), **believed}
        return self._space.sampled(lambda _, distribution: draw_from(distribution, source), params)


def _draw(dimension: Categorical | Ordinal | Range, source: random.Random, is_center: bool) -> Any:
    prior = dimension.prior
    if not isinstance(dimension, Range):
        count = dimension.num_values
        return prior if is_center or source.random() < BELIEF else dimension.value(source.randrange(count))
    assert isinstance(prior, Prior)
    return nearest(dimension, prior.mean if is_center else _normal(dimension, prior, source))


def _normal(dimension: Range, prior: Prior, source: random.Random) -> float:
    """A normal number inside the range; on a logarithmic scale its logarithm is normal."""
    mean, low, high = float(prior.mean), float(dimension.low), float(dimension.high)
    if dimension.log:
        mean, low, high = math.log(mean), math.log(low), math.log(high)
    sigma = (high - low) / 6 if prior.sigma is None else math.log(prior.sigma) if dimension.log else float(prior.sigma)
    for _ in range(100):
        value = source.gauss(mean, sigma)
        if low <= value <= high:
            break
    else:
        value = source.uniform(low, high)
    return math.exp(value) if dimension.log else value


def nearest(dimension: Range, value: float) -> int | float:
    """The value of the range that is nearest to this one."""
    if dimension.num_values is None:
        return min(float(dimension.high), max(float(dimension.low), value))
    index = round((value - dimension.low) / (dimension.step or 1))
    return dimension.value(min(dimension.num_values - 1, max(0, index)))
