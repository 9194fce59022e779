"""Search spaces of Optuna and Ray Tune as the ``space`` of a study file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from scamp_service.errors import InvalidInput

Space = dict[str, Any]


def space_of_distributions(distributions: Mapping[str, BaseDistribution]) -> Space:
    """The search space of an Optuna study, such as ``study.trials[0].distributions``. Raises ``InvalidInput``."""
    return {name: _of_distribution(name, distribution) for name, distribution in distributions.items()}


def _of_distribution(name: str, distribution: BaseDistribution) -> Space:
    match distribution:
        case CategoricalDistribution():
            return {"choice": list(distribution.choices)}
        case FloatDistribution() | IntDistribution():
            step = (
                distribution.step
                if distribution.step not in (None, 1) or isinstance(distribution, FloatDistribution)
                else None
            )
            return _range(distribution.low, distribution.high, distribution.log, step)
    raise InvalidInput(f"{name}: ScaMP has no parameter like {type(distribution).__name__}")


def space_of_tune(search_space: Mapping[str, Any]) -> tuple[Space, dict[str, Any]]:
    """(space, fixed) of a study file, from the ``param_space`` of Ray Tune.

    Numbers, texts and lists without a domain are fixed. Nested mappings become names with an underscore:
    ``{"net": {"width": …}}`` is ``net_width``. Raises ``InvalidInput`` for what has no counterpart, such as
    ``tune.sample_from``, which is code.
    """
    space, fixed = Space(), dict[str, Any]()
    for name, value in _flat("", search_space):
        if isinstance(value, Mapping) and set(value) == {"grid_search"}:
            space[name] = {"choice": list(value["grid_search"])}
        elif hasattr(value, "sampler") or hasattr(value, "get_sampler"):
            space[name] = _of_domain(name, value)
        elif value is None or isinstance(value, bool | int | float | str | list):
            fixed[name] = value
        else:
            raise InvalidInput(f"{name}: {type(value).__name__} has no counterpart in a study file")
    return space, fixed


def _flat(prefix: str, values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for name, value in values.items():
        path = f"{prefix}{name}"
        is_branch = isinstance(value, Mapping) and set(value) != {"grid_search"}
        flat += _flat(f"{path}_", value) if is_branch else [(path, value)]
    return flat


def _of_domain(name: str, domain: Any) -> Space:
    """One of Tune's domains, known by the names of its class and its sampler: Tune itself is not imported here."""
    sampler = domain.get_sampler()
    step = None
    if type(sampler).__name__ == "Quantized":
        step, sampler = sampler.q, sampler.sampler
    kind, how = type(domain).__name__, type(sampler).__name__.strip("_")
    if kind == "Categorical":
        return {"choice": list(domain.categories)}
    if kind not in ("Float", "Integer") or how not in ("Uniform", "LogUniform"):
        raise InvalidInput(f"{name}: {domain.domain_str if hasattr(domain, 'domain_str') else kind} has no counterpart")
    low, high = domain.lower, domain.upper
    if not (math.isfinite(low) and math.isfinite(high)):
        raise InvalidInput(f"{name}: a range needs a lower and an upper end")
    is_log = how == "LogUniform"
    if kind == "Integer" and step in (None, 1):
        return _range(int(low), int(high) - 1, is_log, None)  # Tune leaves the upper end out
    if step is not None and is_log:
        raise InvalidInput(f"{name}: a log range cannot have a step; leave out q or list the values")
    if kind == "Integer":
        return _range(int(low), int(high), is_log, int(step or 1))
    return _range(float(low), float(high), is_log, step)


def _range(low: float, high: float, log: bool, step: float | None) -> Space:
    range_: Space = {"low": low, "high": high}
    if log:
        range_["log"] = True
    if step is not None:
        range_["step"] = step
    return range_
