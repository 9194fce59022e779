"""Samplers by name, with their options, as a user writes them. ``search.proposals`` has the sampler with each name.

The options of Optuna's samplers have Optuna's names and defaults.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from scamp_service.study.values import Integer, Number, OneOf, Strict, Value, at_most, by_name

_Count = Annotated[Integer, Field(ge=0, le=100_000)]
_Positive = Annotated[Integer, Field(ge=1, le=100_000)]
_Population = Annotated[Integer, Field(ge=2, le=100_000)]
_Probability = Annotated[Number, Field(ge=0, le=1)]
Crossover = Literal["uniform", "blxalpha", "sbx", "spx", "undx", "vsbx"]


class _Options(Strict):
    """Options of one sampler. Without any it is written as its name alone."""

    several_objectives: ClassVar[bool] = True
    """Whether the sampler knows more than one objective."""

    exhaustive: ClassVar[bool] = False
    """Whether the sampler tries every point once, so that it ends by itself and has no use for priors and filters."""

    constraints: ClassVar[bool] = True
    """Whether the sampler is told which points the constraints of a study reject."""

    @model_serializer(mode="wrap")
    def _shortest(self, handler: SerializerFunctionWrapHandler) -> Any:
        serialized = handler(self)
        defaults = {name: field.get_default() for name, field in type(self).model_fields.items() if name != "name"}
        options = {name: value for name, value in serialized.items() if name != "name" and value != defaults[name]}
        name = serialized.get("name", getattr(self, "name"))  # noqa: B009 - each subclass has it
        return {"name": name, **options} if options else name


class RandomOptions(_Options):
    """Uniform in each range, or in its logarithm."""

    name: Literal["random"]


class GridOptions(_Options):
    """Every point of a grid once, shuffled."""

    exhaustive = True

    name: Literal["grid"]


class BruteForceOptions(_Options):
    """Optuna's ``BruteForceSampler``: every point once, those of small branches first."""

    exhaustive = True
    constraints = False
    name: Literal["brute_force"]
    avoid_premature_stop: bool = False


class QmcOptions(_Options):
    """Optuna's ``QMCSampler``: a sequence that fills the space evenly."""

    name: Literal["qmc"]
    qmc_type: Literal["sobol", "halton"] = "sobol"
    scramble: bool = False


class TpeOptions(_Options):
    """Optuna's ``TPESampler``. ``group`` is on where parameters exist only under conditions, unless it is set."""

    name: Literal["tpe"] = "tpe"
    n_startup_trials: _Count = 10
    n_ei_candidates: _Positive = 24
    multivariate: bool | None = None
    group: bool | None = None
    constant_liar: bool = True

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.group and self.multivariate is False:
            raise ValueError("group needs multivariate: parameters that exist together are modelled together")
        return self


def _file_name(name: str) -> str:
    if not re.fullmatch(r"(?!/)(?!.*\.\.)[\w./-]+\.py:[A-Za-z_]\w*", name):
        raise ValueError("must be FILE.py:name with a path relative to the study")
    return name


class FileOptions(_Options):
    """A sampler of Optuna in the user's own file: an object, or a function or class that makes one from a seed."""

    name: Annotated[str, Field(max_length=300), AfterValidator(_file_name)]


class TuneOptions(_Options):
    """A ``Searcher`` of Ray Tune by its name there, with its own options."""

    name: Literal["tune"]
    several_objectives = False
    searcher: Annotated[str, Field(pattern=r"^[a-z_]{1,50}$")]
    options: Annotated[dict[str, Value], at_most(50)] = Field(default={}, max_length=50)


class GpOptions(_Options):
    """Optuna's ``GPSampler``: a Gaussian process."""

    name: Literal["gp"]
    n_startup_trials: _Count = 10
    deterministic_objective: bool = False


class CmaEsOptions(_Options):
    """Optuna's ``CmaEsSampler``. Choices and parameters under conditions are random."""

    name: Literal["cmaes"]
    several_objectives = False
    n_startup_trials: _Positive = 1
    popsize: _Population | None = None
    use_separable_cma: bool = False
    lr_adapt: bool = False
    consider_pruned_trials: bool = False

    @model_validator(mode="after")
    def _either(self) -> Self:
        if self.use_separable_cma and self.lr_adapt:
            raise ValueError("use_separable_cma and lr_adapt exclude each other")
        return self


def population_for(num_trials: int) -> int:
    """Size of a population for a search of ``num_trials`` trials: √(2 × ``num_trials``), from 4 to 50.

    Then there are half as many generations as members. A population of 50, as Optuna has by default, is for 1,250
    trials and more: within a hundred it is replaced once.
    """
    return min(50, max(4, round(math.sqrt(2 * num_trials))))


class Populated(_Options):
    """Options of a sampler that improves a population. Its size follows from the number of trials, unless it is set."""

    population_size: _Population | None = None

    def settled(self, num_trials: int) -> Self:
        """The options with every size that they leave open, for a search of ``num_trials`` trials."""
        return self._with(population_size=max(population_for(num_trials), self._least_population()))

    def opened(self, num_trials: int) -> Self:
        """The options without the sizes that ``settled`` fills in again."""
        opened = self
        for name in ("sample_size", "population_size"):
            without = opened.model_copy(update={name: None}) if getattr(opened, name, None) else opened
            if without.settled(num_trials).model_dump() == self.model_dump():
                opened = without
        return opened

    def _least_population(self) -> int:
        """Least population that suits the other options."""
        return 0

    def _with(self, **sizes: int) -> Self:
        """A copy with those sizes that are open. They do not count as given by the author of the study."""
        opened = {name: size for name, size in sizes.items() if getattr(self, name) is None}
        copy = self.model_copy(update=opened)
        copy.model_fields_set.difference_update(opened)
        return copy


class _Genetic(Populated):
    crossover: Crossover = "uniform"
    crossover_prob: _Probability = 0.9
    mutation_prob: _Probability | None = None
    swapping_prob: _Probability = 0.5

    @model_validator(mode="after")
    def _enough_parents(self) -> Self:
        if self.crossover in ("spx", "undx") and self.population_size is not None and self.population_size < 3:
            raise ValueError(f"{self.crossover} needs a population_size of at least 3")
        return self


class Nsga2Options(_Genetic):
    """Optuna's ``NSGAIISampler``: a genetic algorithm."""

    name: Literal["nsga2"]


class Nsga3Options(_Genetic):
    """Optuna's ``NSGAIIISampler``: a genetic algorithm for many objectives."""

    name: Literal["nsga3"]
    dividing_parameter: _Positive = 3


class EvolutionOptions(Populated):
    """Regularized evolution: mutates the best of a sample of the newest trials that have ended.

    With ``inherit`` the new network begins with weights of the one that it is a change of.
    """

    name: Literal["evolution"]
    sample_size: _Positive | None = None
    inherit: bool = False

    @model_validator(mode="after")
    def _within(self) -> Self:
        if (
            self.sample_size is not None
            and self.population_size is not None
            and self.sample_size > self.population_size
        ):
            raise ValueError(
                f"sample_size ({self.sample_size}) must not exceed population_size ({self.population_size})"
            )
        return self

    def settled(self, num_trials: int) -> Self:
        """The options with every size that they leave open; a sample is half of the population."""
        sized = super().settled(num_trials)
        assert sized.population_size is not None
        return sized._with(sample_size=max(2, sized.population_size // 2))

    def _least_population(self) -> int:
        return self.sample_size or 0


NamedOptions = (
    TpeOptions
    | RandomOptions
    | GridOptions
    | QmcOptions
    | GpOptions
    | CmaEsOptions
    | Nsga2Options
    | Nsga3Options
    | BruteForceOptions
    | EvolutionOptions
    | TuneOptions
)

SAMPLER_OPTIONS: Mapping[str, type[_Options]] = by_name(NamedOptions, "name")
"""The options of the sampler with each name."""


def _name(value: Any) -> str | None:
    name = value.get("name") if isinstance(value, Mapping) else getattr(value, "name", None)
    if not isinstance(name, str):
        return None
    return "file" if ".py:" in name else name


def _with_name(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


Sampler = Annotated[
    NamedOptions | FileOptions,
    OneOf(
        {**SAMPLER_OPTIONS, "file": FileOptions},
        _name,
        "sampler",
        f"must be one of {', '.join(SAMPLER_OPTIONS)}, FILE.py:name, or {{name: …}} with options",
    ),
    BeforeValidator(_with_name),
]
