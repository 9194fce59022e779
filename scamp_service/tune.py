"""For people who stay with Ray Tune: placement groups of trials by ScaMP's estimator and planner.

Only sizes are decided here. Tune proposes, starts and stops the trials, and the user's trainable trains them.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from ray.tune import PlacementGroupFactory

from estimators.model import MIB, Plan
from placement.option import NoPlan
from placement.planning.answers import ChosenPlan
from scamp_service.errors import InvalidInput
from scamp_service.patience import TRACE_SECONDS
from scamp_service.settings import Settings
from scamp_service.sizing.candidates import candidates_of, is_study
from scamp_service.sizing.estimate import Estimator, target
from scamp_service.sizing.estimated import params_in_words
from scamp_service.sizing.tracing.options import Tracing

CPU_RANK = {"CPU": 1.0}
PROCESS_MIB = 512
"""MiB of a process that has imported torch, besides the tensors that ScaMP predicts."""


def scamp_resources(
    workload: str,
    *,
    device: str | None = None,
    count: int = 1,
    mib: int | None = None,
    per_rank: Mapping[str, float] = CPU_RANK,
    process_mib: int = PROCESS_MIB,
    when_too_large: Literal["stop run", "fail trial"] = "stop run",
    working_dir: Path | None = None,
    seconds: int = TRACE_SECONDS,
) -> ScampResources:
    """Resources for ``tune.with_resources(trainable, …)``, which size each trial by its config.

    ``workload`` is what ``scamp estimate`` takes, but no study: ``FILE.py:Class``, ``FILE.py:function`` or a built-in
    name; it gets the config as its parameters. A trial may have up to ``count`` devices: GPUs of the kind ``device``,
    or else processes on CPUs, each of which may use ``mib`` for tensors (default: any number). Each rank asks for
    ``per_rank`` too; on CPUs also for Ray's resource ``memory``, by ``process_mib`` more than its tensors need.
    ``seconds`` is the processor time for one trace.

    A candidate that fits nowhere, or that the workload refuses, raises ``InvalidInput``, which ends Tune's run; with
    "fail trial" it gets one process instead, in which ``ScampResources.plan`` raises the same. Raises ``InvalidInput``
    for devices or a workload that do not exist.
    """
    return ScampResources(
        workload,
        _Requests(dict(per_rank), process_mib, when_too_large),
        device=device,
        count=count,
        mib=mib,
        working_dir=working_dir,
        seconds=seconds,
    )


@dataclass(frozen=True, slots=True)
class _Requests:
    """The resources that each rank asks of Ray, and what happens to a trial that fits nowhere."""

    per_rank: dict[str, float]
    process_mib: int
    when_too_large: Literal["stop run", "fail trial"]


class ScampResources:
    """A function of Tune's config that returns the placement group of the trial, one bundle for each rank.

    It can be pickled. It starts trace processes when it needs them; ``close``, leaving its ``with`` block or the end of
    the program ends them.
    """

    def __init__(
        self,
        workload: str,
        requests: _Requests,
        *,
        device: str | None,
        count: int,
        mib: int | None,
        working_dir: Path | None,
        seconds: int,
    ) -> None:
        if is_study(workload):
            raise InvalidInput(f"{workload} is a study: name its workload, such as model.py:Net")
        settings = Settings()
        self._cluster, self._kind = target(settings, device, count, mib, any_size=True)
        candidates = candidates_of(workload, {}, working_dir=working_dir)
        self._workload, self._code, self._seconds = candidates.workload, candidates.code, seconds
        self._cache_dir = settings.data_dir / "profiles"
        self._requests = requests
        self._least_share = 1 / settings.max_gangs_per_device
        self._estimator: Estimator | None = None
        self._close: Callable[[], object] = _nothing
        self._known: dict[str, ChosenPlan | NoPlan] = {}

    def __call__(self, config: Mapping[str, Any]) -> PlacementGroupFactory:
        """The placement group of a trial with this config. Raises ``InvalidInput``, see ``scamp_resources``."""
        try:
            chosen = self._choice(config)
        except InvalidInput:
            if self._requests.when_too_large == "stop run":
                raise
            return PlacementGroupFactory([dict(self._requests.per_rank)])
        return PlacementGroupFactory([self._bundle(chosen) for _ in range(chosen.plan.world_size)], strategy="PACK")

    def plan(self, config: Mapping[str, Any]) -> Plan:
        """The plan for which the placement group of this config is made. Raises ``InvalidInput`` if there is none."""
        return self._choice(config).plan

    def close(self) -> None:
        """End the trace processes; they start again when they are needed."""
        self._close()
        self._estimator, self._close = None, _nothing

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_estimator": None, "_close": _nothing}

    def _choice(self, config: Mapping[str, Any]) -> ChosenPlan:
        """The plan and its cost, the same for candidates that differ only in numbers of the optimizer."""
        params = {name: _plain(value) for name, value in config.items()}
        if self._estimator is None:
            self._estimator = Estimator(
                self._workload, self._code, Tracing(self._cache_dir, seconds=self._seconds), self._kind
            )
            self._close = weakref.finalize(self, self._estimator.__exit__, None, None, None)
        family = self._estimator.key(params)
        if family not in self._known:
            self._known[family] = self._estimator.plan(params, self._cluster)
        chosen = self._known[family]
        if isinstance(chosen, NoPlan):
            raise InvalidInput(f"{params_in_words(params)}: {chosen.reason}")
        return chosen

    def _bundle(self, chosen: ChosenPlan) -> dict[str, float]:
        """Resources of one rank: a share of a GPU by its memory if it trains alone, so that small models share one."""
        reserved_mib = chosen.prediction.reserved_mib
        if self._kind is None or self._kind.memory is None:
            return {**self._requests.per_rank, "memory": float((reserved_mib + self._requests.process_mib) * MIB)}
        offered_mib = self._cluster.devices[0].capacity_mib
        share = max(self._least_share, reserved_mib / offered_mib) if chosen.plan.world_size == 1 else 1.0
        return {**self._requests.per_rank, "GPU": math.ceil(share * 10_000) / 10_000}  # Ray counts in 1/10,000


def _nothing() -> None:
    pass


def _plain(value: Any) -> Any:
    """``value`` with Python's numbers in place of NumPy's, which searchers of Tune propose."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.item() if hasattr(value, "item") else value
