"""The objective of a study: which metric, and which of two values of it is the better one.

Code that compares, orders or ranks trials asks the objective. Only samplers of other libraries, SQL, the exchange with
Optuna and the dashboard read the direction itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict

from scamp.shown import PREDICTED
from scamp_service.study.values import Strict, Title


def measured_metrics(metrics: Iterable[str]) -> list[str]:
    """Those of these metrics of objectives that evaluations report."""
    return [metric for metric in metrics if not metric.startswith(PREDICTED)]


class Objective(Strict):
    """The metric to optimize: a key of what ``evaluate()`` returns, or ``PREDICTED`` and a predicted quantity.

    A trial counts by its last report, or by the best of its reports, whose checkpoint is then kept as well.
    """

    model_config = ConfigDict(frozen=True)

    metric: Title
    direction: Literal["maximize", "minimize"] = "maximize"
    at: Literal["last", "best"] = "last"

    @classmethod
    def of_spec(cls, spec: Mapping[str, Any]) -> Self:
        """The objective in the JSON of a stored study. It was checked when the study was submitted, not again here."""
        return cls.model_construct(**spec["objective"])

    @property
    def predicted(self) -> str:
        """The predicted quantity that it asks for, such as ``peak_mib``; empty for a measured metric."""
        return self.metric.removeprefix(PREDICTED) if self.metric.startswith(PREDICTED) else ""

    @property
    def prefers_large(self) -> bool:
        """Whether the larger of two values is the better one."""
        return self.direction == "maximize"

    def key(self, value: float) -> float:
        """Sorts values with the best first: the smaller the key, the better the value."""
        return -value if self.prefers_large else value

    def keys(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The key of each of these values."""
        return -values if self.prefers_large else values

    def is_better(self, value: float, than: float) -> bool:
        """Whether ``value`` is strictly better. NaN is neither better nor worse than anything."""
        return self.key(value) < self.key(than)
