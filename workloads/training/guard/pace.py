"""Decides after which steps the guard checks a training, so that it sees all that the code does, in little time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

MOST_SHARE = 0.01
"""Largest share of the time of an attempt; the first checks, those of new paths and the last one may take more."""
MOST_PATHS = 6
"""Paths whose first step is checked at once; code that takes more differs from step to step."""
MOST_SIGNS = 12
"""Steps with a new sign of one attribute that are checked beyond those: others may differ from step to step."""
_MOST_NUMBERS = 64
"""Most numbers of a tensor that is looked at."""


@dataclass(frozen=True, slots=True)
class Path:
    """A sign of what the code of a step did: another one where a term, a part of the model or a schedule began.

    ``nodes`` counts the operations that autograd has recorded. ``signs`` say of each attribute of the workload and of
    modules that is a number, or a few in a tensor, such as weights of classes, by the number of its owner: whether it
    is 0, and whether those in a tensor are all equal.
    """

    nodes: int
    signs: frozenset[tuple[int, str, str]]


def path_of(nodes: int, owners: Sequence[object]) -> Path:
    """The path of a step that has just ended; ``owners`` have the attributes."""
    signs = (
        (number, name, sign)
        for number, owner in enumerate(owners)
        for name, value in vars(owner).items()
        if (sign := _sign(value)) is not None
    )
    return Path(nodes, frozenset(signs))


def with_users_modules(workload: object, model: nn.Module) -> list[object]:
    """The workload, and the modules whose classes are not torch's alone: code that may read their attributes."""
    return [workload, *(module for module in model.modules() if any(map(_is_users, type(module).__mro__)))]


def _is_users(class_: type) -> bool:
    return class_.__module__.partition(".")[0] not in ("torch", "builtins", "scamp", "workloads", "transformers")


def _sign(value: object) -> str | None:
    """Whether a number is 0, or whether a few are, or are not all equal; None for other values."""
    if type(value) in (bool, int, float):
        return "on" if value else "0"
    if not isinstance(value, Tensor) or not _is_small(value):
        return None
    numbers = value.detach().flatten()
    if bool((numbers != numbers[0]).any()):
        return "uneven"
    return "on" if bool(numbers[0]) else "0"


def _is_small(tensor: Tensor) -> bool:
    return type(tensor) is Tensor and tensor.layout is torch.strided and 0 < tensor.numel() <= _MOST_NUMBERS


@dataclass(slots=True)
class Pace:
    """The checks of an attempt that began at ``began``: after its second step, as counters that begin with 0 have then
    left it, or the first one if it resumes, after the first step of each new path or sign, after its last, and as often
    as the share of time allows."""

    began: float
    resumes: bool = False
    seconds: float = 0.0
    _num_steps: int = 0
    _last_seconds: float | None = None
    _paths: set[Path] = field(default_factory=set)
    _signs: set[tuple[int, str, str]] = field(default_factory=set)
    _num_signs: int = 0

    def is_due(self, path: Path, now: float) -> bool:
        """Whether a check should follow the step that has just ended."""
        self._num_steps += 1
        is_new = path not in self._paths and len(self._paths) < MOST_PATHS
        if not is_new and not path.signs <= self._signs and self._num_signs < MOST_SIGNS:
            is_new, self._num_signs = True, self._num_signs + 1
        self._paths.add(path)
        self._signs |= path.signs
        first = 1 if self.resumes else 2
        if self._num_steps <= first:
            return self._num_steps == first
        return is_new or self.may_take(self._last_seconds or 0.0, now)

    def may_take(self, seconds: float, now: float) -> bool:
        """Whether something that takes these seconds keeps to the share."""
        return self.seconds + seconds <= MOST_SHARE * (now - self.began)

    def share(self, now: float) -> float:
        """Share of the time so far that checks took."""
        return self.seconds / (now - self.began)

    def take(self, seconds: float) -> None:
        """Count seconds of another kind of check."""
        self.seconds += seconds

    def end_check(self, seconds: float) -> None:
        """Count a check."""
        self.take(seconds)
        self._last_seconds = seconds
