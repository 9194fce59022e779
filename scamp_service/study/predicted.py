"""Bounds on what is predicted of a candidate: one that breaks them is not trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Self

from pydantic import ConfigDict, model_validator

from scamp_service.study.values import Number, Strict


class Bound(Strict):
    """The values that a predicted quantity may have: from ``min`` to ``max``."""

    model_config = ConfigDict(frozen=True)

    min: Number | None = None
    max: Number | None = None

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.min is None and self.max is None:
            raise ValueError("give min, max or both")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min ({self.min}) must not exceed max ({self.max})")
        return self


class PredictedBounds(Strict):
    """Bounds by predicted quantity, of the plan that was chosen for a candidate.

    ``peak_mib`` is the peak of one rank, ``reserved_mib`` what a device must offer for it; ``step_seconds`` are those
    of an optimizer step of the gang alone on its host, ``parameters`` the number of the model's parameters, and
    ``flops`` the floating point operations of a training step for one sample, forward and backward.
    """

    model_config = ConfigDict(frozen=True)

    peak_mib: Bound | None = None
    reserved_mib: Bound | None = None
    step_seconds: Bound | None = None
    ranks: Bound | None = None
    parameters: Bound | None = None
    flops: Bound | None = None

    def excesses(self, quantities: Mapping[str, float | None]) -> dict[str, float]:
        """How far each bound is exceeded, as a share of it; not positive where it holds.

        That is how samplers know constraints. Quantities that are not known are left out.
        """
        return {name: excess for name, excess, _ in self._judged(quantities)}

    def why_not(self, quantities: Mapping[str, float | None]) -> str:
        """The bounds that are exceeded, in words; empty if none is."""
        return "; ".join(words for _, excess, words in self._judged(quantities) if excess > 0)

    def _judged(self, quantities: Mapping[str, float | None]) -> Iterator[tuple[str, float, str]]:
        for name in type(self).model_fields:
            bound, value = getattr(self, name), quantities.get(name)
            if bound is None or value is None:
                continue
            for kind, limit, sign in (("max", bound.max, 1), ("min", bound.min, -1)):
                if limit is not None:
                    words = f"its predicted {name} is {value:.6g}, and the study wants at {_MOST[kind]} {limit:g}"
                    yield f"predicted.{name}.{kind}", sign * (value - limit) / (abs(limit) or 1.0), words


NO_BOUNDS = PredictedBounds()
_MOST = {"max": "most", "min": "least"}
