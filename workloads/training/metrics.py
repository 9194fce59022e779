"""Adds up the metrics that ``evaluate`` returns for each batch, and refuses what cannot be averaged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from workloads.protocol import Metrics, Outputs, Workload, defines
from workloads.refusals import WorkloadError, kinds_of
from workloads.training.reported import Unreportable, with_plain_names


class Sums:
    """Sum of each metric over all samples seen so far, and what it is divided by, on the CPU in float64."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._are_pairs: dict[str, bool] | None = None

    @property
    def names(self) -> list[str]:
        """Names of the metrics, sorted."""
        return sorted(self._sums)

    def add(self, metrics: Metrics, mask: Tensor) -> None:
        """Add the metrics of a batch; ``mask``, shape [n], is False for samples that only fill it up.

        Raises ``WorkloadError`` unless each has one value per sample, or two, and all batches have the same metrics.
        """
        if not isinstance(metrics, Mapping):
            raise WorkloadError(f"evaluate must return a dictionary of metrics, got {type(metrics).__name__}")
        with reportable("evaluate"):
            metrics = with_plain_names(metrics)
        for name, values in metrics.items():
            _check(name, values, len(mask))
        are_pairs = {name: isinstance(values, tuple) for name, values in metrics.items()}
        if self._are_pairs is not None and are_pairs != self._are_pairs:
            if metrics.keys() != self._sums.keys():
                raise WorkloadError(_differ(sorted(metrics), self.names, "for one batch", "for another"))
            raise WorkloadError("evaluate must return a metric as a pair for every batch, or for none")
        self._are_pairs = are_pairs
        for name, values in metrics.items():
            of_samples = torch.stack([part.detach().to("cpu", torch.float64) for part in as_pair(values)])
            # The value of a sample that is left out may be NaN, so it is not multiplied by 0.
            summed = torch.where(mask, of_samples, 0.0).sum(-1)
            self._sums[name] = self._sums[name] + summed if name in self._sums else summed

    def of(self, names: Sequence[str]) -> Tensor:
        """The sums of these metrics, and what they are divided by, shape [2, number of names].

        Both are 0 for a metric that this rank does not have, as in a pipeline all but the last.
        """
        if not names:
            return torch.zeros(2, 0, dtype=torch.float64)
        return torch.stack([self._sums.get(name, torch.zeros(2, dtype=torch.float64)) for name in names], -1)


def as_pair(values: Tensor | tuple[Tensor, Tensor | float]) -> tuple[Tensor, Tensor]:
    """A loss or a metric as a sum and what it is divided by: 1 for one that is a mean."""
    if isinstance(values, tuple):
        total, count = values
        return total, torch.as_tensor(count)
    return values, torch.ones_like(values)


def split_evaluation(workload: Workload, evaluated: Any) -> tuple[Metrics, Outputs]:
    """The metrics of each sample, and the outputs for metrics of the whole set: None without any.

    Raises ``WorkloadError`` unless ``evaluate`` returns outputs just where something takes them.
    """
    methods = [name for name in ("metrics", "summarize") if defines(workload, name)]
    is_pair = isinstance(evaluated, tuple)
    if is_pair and not methods:
        raise WorkloadError(
            "evaluate returns a tuple, but neither metrics nor summarize takes outputs: define one of them, or return "
            "only a dictionary of metrics"
        )
    if not methods:
        return evaluated, None
    if not is_pair or len(evaluated) != 2:
        raise WorkloadError(
            f"the workload defines {' and '.join(methods)}, so evaluate must return two things: a dictionary of "
            f"metrics of each sample, which may be empty, and the outputs; it returned {kinds_of(evaluated)}"
        )
    metrics, outputs = evaluated
    return metrics, outputs


def common_names(of_ranks: Sequence[Sequence[str]], *, may_be_none: bool = False) -> list[str]:
    """Names of the metrics of all ranks that have any. Raises ``WorkloadError`` if they differ, or none has any."""
    having = [(rank, list(names)) for rank, names in enumerate(of_ranks) if names]
    if not having and may_be_none:
        return []
    if not having:
        raise WorkloadError("evaluate returned no metric: return at least the study's objective, and num_eval samples")
    first, names = having[0]
    for rank, others in having[1:]:
        if others != names:
            raise WorkloadError(_differ(others, names, f"on rank {rank}", f"on rank {first}"))
    return names


@contextmanager
def reportable(subject: str) -> Iterator[None]:
    """Raises ``WorkloadError`` about ``subject``, such as a method, for metrics that cannot be reported."""
    try:
        yield
    except Unreportable as error:
        raise WorkloadError(f"{subject} {error}") from None


def _check(name: str, values: object, num_samples: int) -> None:
    expectation = f"evaluate must return metric {name!r} with one value per sample, shape [{num_samples}]"
    if isinstance(values, tuple) and len(values) != 2:
        raise WorkloadError(f"{expectation}, or a pair of totals and counts, got {len(values)} values")
    for part in values if isinstance(values, tuple) else (values,):
        if not isinstance(part, Tensor):
            raise WorkloadError(f"{expectation}, got a {type(part).__name__}: return a tensor")
        if part.shape != (num_samples,):
            raise WorkloadError(f"{expectation}, got {list(part.shape)}: do not average over the samples")
        if part.is_complex():
            raise WorkloadError(f"{expectation}, got complex numbers: return their real parts or absolute values")


def _differ(names: Sequence[str], expected: Sequence[str], here: str, there: str) -> str:
    odd = ", ".join(sorted(set(names) ^ set(expected))[:5])
    where = here if set(names) - set(expected) else there
    return (
        f"evaluate must return the same metrics for every batch, but {odd} is there only {where}: "
        "return it always, because it is averaged over all samples"
    )
