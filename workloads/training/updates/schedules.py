"""Learning-rate schedulers of torch: stepped after every update, stored in checkpoints, the same under every plan."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from workloads.protocol import Workload
from workloads.refusals import WorkloadError, WrongResult, kinds_of

_TRIED_STEPS = 3
_MAPPINGS: dict[str, type[dict[Any, Any]]] = {"dict": dict, "Counter": Counter}


def schedulers_of(workload: Workload, optimizer: Optimizer, steps: int) -> list[LRScheduler]:
    """The schedulers that the workload makes for ``optimizer``. Raises ``WrongResult`` for anything else."""
    result = workload.scheduler(optimizer, steps)
    every: list[Any] = [] if result is None else list(result) if isinstance(result, list | tuple) else [result]
    for scheduler in every:
        if not isinstance(scheduler, LRScheduler):
            raise WrongResult(
                workload.scheduler,
                f"returns {kinds_of(scheduler)} instead of a scheduler",
                "return one of torch.optim.lr_scheduler, a list of them, or None; or set the rate in on_step",
            )
        if getattr(scheduler, "optimizer", optimizer) is not optimizer:
            raise WrongResult(
                workload.scheduler,
                f"returns a {type(scheduler).__name__} of another optimizer, whose rates nobody uses",
                "make it of the optimizer that is passed to it",
            )
    return every


def expect_resumable(workload: Workload, optimizer: Optimizer, steps: int) -> None:
    """Raise ``WrongResult`` unless a scheduler that was stored and loaded gives the rates of one that was not.

    It changes the rates in ``optimizer``, which nobody must use afterwards.
    """
    schedules = Schedules(workload, optimizer, steps)
    if not schedules.schedulers:
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the optimizer makes no step here
        for _ in range(_TRIED_STEPS):
            schedules.step()
        state, stored = schedules.state(), [group["lr"] for group in optimizer.param_groups]
        schedules.step()
        expected = [float(group["lr"]) for group in optimizer.param_groups]
        _set(optimizer, rates)
        for group in optimizer.param_groups:
            group.pop("initial_lr", None)
        resumed = Schedules(workload, optimizer, steps)
        _set(optimizer, stored)
        resumed.load(state)
        resumed.step()
    if [float(group["lr"]) for group in optimizer.param_groups] != expected:
        raise WrongResult(
            workload.scheduler,
            "returns a scheduler that does not continue after a resume: its state_dict() does not hold all that its "
            "rates depend on",
            "let the rate depend on the step alone, or keep what it depends on in state_dict()",
        )


class Schedules:
    """The schedulers of one optimizer. Those that wait for metrics (``ReduceLROnPlateau``) are stepped by the workload
    in ``on_evaluate``, not here."""

    def __init__(self, workload: Workload, optimizer: Optimizer, steps: int) -> None:
        """``optimizer`` is the workload's own, before it is spread over ranks."""
        self._workload, self.optimizer = workload, optimizer
        self._num_groups = len(optimizer.param_groups)
        self.schedulers = schedulers_of(workload, optimizer, steps)
        self._pairs: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def follow(self, own_optimizer: Optimizer, spread: Optimizer) -> None:
        """Give the groups of the optimizer that ranks use the rates of the workload's own groups from now on."""
        groups = enumerate(spread.param_groups)
        pairs = ((group, own_optimizer.param_groups[group.get("part_of", number)]) for number, group in groups)
        self._pairs = [(group, source) for group, source in pairs if group is not source]

    def step(self) -> None:
        """Call it after each update."""
        with self.changing():
            for scheduler in self.schedulers:
                if not isinstance(scheduler, ReduceLROnPlateau):
                    scheduler.step()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """The context in which schedulers are stepped: the optimizer has the groups that they know.

        At its end, the groups that ranks use get the new rates.
        """
        if not self.schedulers:
            yield
            return
        groups = self.optimizer.param_groups
        self.optimizer.param_groups = groups[: self._num_groups]
        try:
            yield
        finally:
            self.optimizer.param_groups = groups
            for group, source in self._pairs:
                group.update(_options(source))

    def state(self) -> list[Any]:
        """The state of each scheduler, as JSON holds it. Raises ``WrongResult`` if it holds anything else."""
        return [self._plain(scheduler) for scheduler in self.schedulers]

    def load(self, states: Sequence[Any]) -> None:
        """Continue from what ``state`` returned. Raises ``WorkloadError`` if that was of other schedulers."""
        if len(states) != len(self.schedulers):
            raise WorkloadError(
                f"the checkpoint has {len(states)} schedulers, but scheduler() makes {len(self.schedulers)}: "
                "return as many in every attempt"
            )
        for scheduler, state in zip(self.schedulers, states, strict=True):
            scheduler.load_state_dict(_unpacked(state))
        for group, source in self._pairs:  # options came from the checkpoint to the groups that ranks use
            source.update(_options(group))

    def skip(self, num_steps: int) -> None:
        """Go ahead as if this many updates had been made."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the optimizer makes none
            for _ in range(num_steps if self.schedulers else 0):
                self.step()

    def _plain(self, scheduler: LRScheduler) -> Any:
        try:
            return _packed(scheduler.state_dict())
        except (TypeError, ValueError, NotImplementedError, AttributeError) as error:
            raise WrongResult(
                self._workload.scheduler,
                f"returns a {type(scheduler).__name__} that cannot be stored in a checkpoint: {error}",
                "keep only numbers, text and lists of them in its state_dict()",
            ) from None


def _packed(value: Any) -> Any:
    """The value as JSON can hold it: dictionaries as lists of items, because their keys may be numbers."""
    if isinstance(value, Mapping):
        kind = type(value).__name__
        if kind not in _MAPPINGS:
            raise TypeError(f"it holds a {kind}")
        return {kind: [[_packed(key), _packed(element)] for key, element in value.items()]}
    if isinstance(value, list | tuple):
        return [_packed(element) for element in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"it holds a {type(value).__name__}")


def _unpacked(value: Any) -> Any:
    if isinstance(value, dict):
        ((kind, items),) = value.items()
        return _MAPPINGS[kind]({key: _unpacked(element) for key, element in items})
    return [_unpacked(element) for element in value] if isinstance(value, list) else value


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name not in ("params", "part_of")}


def _set(optimizer: Optimizer, rates: Sequence[Any]) -> None:
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
