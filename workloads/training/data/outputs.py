"""Metrics of the whole held-out set, such as F1 and AUC: outputs of all ranks come together, in the order of samples.

Outputs wait in host memory outside of a rank's budget. Samples that only fill up a micro-batch are dropped, and ranks
that compute the same samples count once. One rank computes the metrics, with the same values under every plan.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten, tree_flatten_with_path, tree_unflatten

from estimators.model import Plan
from scamp.workload.seeds import kept_generators, seed_host
from workloads.protocol import Outputs, Workload, defines
from workloads.refusals import WrongResult, kinds_of
from workloads.training.memory.process_memory import host_copy
from workloads.training.reported import Unreportable, joined, plain_metrics

CHUNK = 1024
"""Samples of one update of a metric: as many under every plan, so that the plan cannot change its value."""
METHODS = ("metrics", "summarize")


def has_summary(workload: Workload) -> bool:
    """Whether the workload has metrics of the whole held-out set."""
    return any(defines(workload, name) for name in METHODS)


class Collected:
    """The outputs of one evaluation on this rank, in host memory."""

    def __init__(self, workload: Workload) -> None:
        self._evaluate = workload.evaluate
        self._batches: list[tuple[list[Tensor], Tensor]] = []
        self._tree: Any = None  # the structure of the outputs

    def add(self, outputs: Outputs, counted: Tensor) -> None:
        """Add the outputs of a micro-batch; ``counted``, shape [n], is False for samples that only fill it up.

        Raises ``WrongResult`` unless they are tensors with one entry for each sample.
        """
        places, tree = tree_flatten_with_path(outputs)
        if self._tree is not None and tree != self._tree:
            raise WrongResult(self._evaluate, "returns outputs of two structures", "return the same for every batch")
        leaves = [leaf for _, leaf in places]
        for path, leaf in places:
            if not isinstance(leaf, Tensor) or leaf.ndim == 0 or len(leaf) != len(counted):
                raise WrongResult(
                    self._evaluate,
                    f"returns {kinds_of(leaf)} as outputs{keystr(path)} for {len(counted)} samples",
                    "return tensors whose first dimension is the sample; where samples have unlike numbers of entries, "
                    "such as boxes, pad them, and return the numbers too",
                )
        if not leaves:
            raise WrongResult(self._evaluate, "returns outputs without a tensor", "return what metrics need")
        self._tree = tree
        self._batches.append(([host_copy(leaf) for leaf in leaves], counted))

    def gathered(self, plan: Plan, rank: int) -> Outputs | None:
        """The outputs of all held-out samples in their order on rank 0, None on others; all ranks call it."""
        num_leaves = len(self._batches[0][0]) if self._batches else 0
        structure = tree_unflatten(list(range(num_leaves)), self._tree) if self._batches else None
        own_outputs = (structure, self._batches) if rank in contributors(plan) else None
        ranks: list[Any] = [own_outputs]
        if plan.world_size > 1:
            listed: list[Any] | None = [None] * plan.world_size if rank == 0 else None
            dist.gather_object(own_outputs, listed, dst=0)
            if listed is None:
                return None
            ranks = [listed[rank_index] for rank_index in contributors(plan)]
        return self._joined(ranks)

    def _joined(self, ranks: Sequence[tuple[Any, list[tuple[list[Tensor], Tensor]]]]) -> Outputs:
        tree = tree_flatten(ranks[0][0])[1]
        rounds = zip(*(batches for _, batches in ranks), strict=True)
        parts = [[leaf[counted] for leaf in leaves] for together in rounds for leaves, counted in together]
        try:
            return tree_unflatten([torch.cat(leaves) for leaves in zip(*parts, strict=True)], tree)
        except RuntimeError as error:
            raise WrongResult(
                self._evaluate,
                f"returns outputs whose sizes differ from batch to batch ({error})",
                "pad them to one size, or reduce them to one value for each sample",
            ) from error


def contributors(plan: Plan) -> list[int]:
    """The first rank with outputs of each share of the batch, in the order of the shares."""
    last_stage = [rank for rank in range(plan.world_size) if plan.has_last_stage(rank)]
    first: dict[int, int] = {}
    for rank in last_stage:
        first.setdefault(plan.data_rank(rank), rank)
    return [first[share] for share in sorted(first)]


def summary(workload: Workload, outputs: Outputs, seed: int) -> dict[str, float]:
    """Metric → its value over ``outputs``, which are those of all held-out samples.

    Raises ``WrongResult`` for results that are not numbers, and whatever the user's code raises.
    """
    values: dict[str, float] = {}
    with torch.no_grad(), kept_generators(workload), _without_gang():
        seed_host(seed, workload)
        if defines(workload, "metrics"):
            with _reportable(workload.metrics):
                for computed in _computed(workload, outputs):
                    values = joined(values, computed)
        if defines(workload, "summarize"):
            metrics = workload.summarize(outputs)
            if not isinstance(metrics, Mapping):
                raise WrongResult(workload.summarize, f"returns {kinds_of(metrics)}", "return a dictionary of numbers")
            with _reportable(workload.summarize):
                values = joined(values, plain_metrics(metrics))
    return values


@contextmanager
def _reportable(method: Callable[..., Any]) -> Iterator[None]:
    """Raises ``WrongResult`` for metrics of this method that cannot be reported."""
    try:
        yield
    except Unreportable as error:
        raise WrongResult(method, error.problem, error.advice) from None


@contextmanager
def _without_gang() -> Iterator[None]:
    """Hides the gang from torchmetrics, which would otherwise wait for the metrics of other ranks."""
    is_initialized, dist.is_initialized = dist.is_initialized, lambda: False
    try:
        yield
    finally:
        dist.is_initialized = is_initialized


def _computed(workload: Workload, outputs: Outputs) -> Iterator[dict[str, float]]:
    """The metrics of each object."""
    for name, metric in metric_objects(workload).items():
        for chunk in _chunks(outputs):
            args, kwargs = _arguments(chunk, metric.update)
            metric.update(*args, **kwargs)
        computed = metric.compute()
        yield plain_metrics(computed if isinstance(computed, Mapping) else {name: computed})


def metric_objects(workload: Workload) -> dict[str, Any]:
    """Name → an object with ``update`` and ``compute``, as ``metrics`` returns them, or one collection with any name.

    Raises ``WrongResult`` for anything else.
    """
    metrics = workload.metrics()
    by_name = dict(metrics) if isinstance(metrics, Mapping) else {"": metrics}
    for name, metric in by_name.items():
        if not all(callable(getattr(metric, method, None)) for method in ("update", "compute")):
            raise WrongResult(
                workload.metrics,
                f"returns {kinds_of(metric)}" + (f" as {name!r}" if name else ""),
                "return a dictionary of torchmetrics, or of other objects with update and compute",
            )
    return by_name


def _chunks(outputs: Outputs) -> Iterator[Outputs]:
    (leaves, tree) = tree_flatten(outputs)
    for parts in zip(*(torch.split(leaf, CHUNK) for leaf in leaves), strict=True):
        yield tree_unflatten(list(parts), tree)


def _arguments(outputs: Outputs, update: Callable[..., Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """How ``update`` takes the outputs: those of a dictionary by name, as far as it has such parameters."""
    if not isinstance(outputs, Mapping):
        return (outputs if isinstance(outputs, tuple | list) else (outputs,)), {}
    parameters = inspect.signature(update).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return (), {name: value for name, value in outputs.items() if takes_all or name in parameters}
