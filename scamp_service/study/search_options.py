"""How a study's candidates are proposed: the sampler with its options, its seed, and what it learns from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from scamp_service.study.one_shot import OneShot
from scamp_service.study.sampler_options import EvolutionOptions, Sampler, TpeOptions
from scamp_service.study.values import Integer, Number, Strict, Title, at_most


class Earlier(Strict):
    """An earlier study whose trials count as history: the newest with this name, or the one with this id.

    ``weight`` is the share of its trials that count.
    """

    study: Title | Annotated[Integer, Field(ge=1)]
    weight: Annotated[Number, Field(gt=0, le=1)] = 1.0


class Filter(Strict):
    """Each trial is the best of ``of`` proposals by a number that costs no training (``workloads.sandbox.proxies``)."""

    proxy: Literal["parameters", "flops", "grad_norm", "jacob_cov"]
    of: Annotated[Integer, Field(ge=2, le=32)] = 4


class SearchOptions(Strict):
    """How candidates are proposed. The same seed and history give the same candidates."""

    sampler: Sampler = TpeOptions()
    seed: Annotated[Integer, Field(ge=0, le=2**31)] = 0
    history: Annotated[list[Earlier], at_most(20)] = Field(default=[], max_length=20)
    filter: Filter | None = None
    one_shot: OneShot | None = None

    @property
    def inherits(self) -> bool:
        """Whether candidates may begin with weights of earlier ones."""
        return self.one_shot is not None or (isinstance(self.sampler, EvolutionOptions) and self.sampler.inherit)
