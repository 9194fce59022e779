"""Decides after which steps the guard checks a training, so that it sees all that the code does, in little time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

MOST_SHARE = 0.01
"""Largest share of the time of an attempt; the first checks, those of new paths and the last one may take more."""
MOST_PATHS = 6
"""Paths whose first step is checked at once; code that takes more differs from step to step."""
_MOST_NUMBERS = 64
"""Most numbers of a tensor that is looked at."""


@dataclass(frozen=True, slots=True)
class Path:
    """A sign of what the code of a step did: another one where a term, a part of the model or a schedule began.

    ``nodes`` counts the operations that autograd has recorded, and ``switched_on`` has the attributes of the workload
    and of modules that are numbers other than 0, also a few in a tensor, such as weights of classes; and whether these
    are all equal.
    """

    nodes: int
    switched_on: frozenset[tuple[int, str]]


def path_of(nodes: int, owners: Sequence[object]) -> Path:
    """The path of a step that has just ended; ``owners`` have the attributes."""
    signs = (
        (number, sign)
        for number, owner in enumerate(owners)
        for name, value in vars(owner).items()
        for sign in _signs(name, value)
    )
    return Path(nodes, frozenset(signs))


def with_users_modules(workload: object, model: nn.Module) -> list[object]:
    """The workload, and the modules whose classes are not torch's alone: code that may read their attributes."""
    return [workload, *(module for module in model.modules() if any(map(_is_users, type(module).__mro__)))]


def _is_users(class_: type) -> bool:
    return class_.__module__.partition(".")[0] not in ("torch", "builtins", "scamp", "workloads", "transformers")


def _signs(name: str, value: object) -> Iterator[str]:
    """Yield a sign if an attribute is another number than 0, or a few that are, and one if these are not all equal."""
    if type(value) in (bool, int, float) and value:
        yield name
    elif isinstance(value, Tensor) and _is_small(value):
        numbers = value.detach().flatten()
        if bool(numbers.any()):
            yield name
        if bool((numbers != numbers[0]).any()):
            yield f"{name}, uneven"


def _is_small(tensor: Tensor) -> bool:
    return type(tensor) is Tensor and tensor.layout is torch.strided and 0 < tensor.numel() <= _MOST_NUMBERS


@dataclass(slots=True)
class Pace:
    """The checks of an attempt that began at ``began``: after its second step, as counters that begin with 0 have then
    left it, or the first one if it resumes, after the first step of each new path, after its last, and as often as the
    share of time allows."""

    began: float
    resumes: bool = False
    seconds: float = 0.0
    _num_steps: int = 0
    _last_seconds: float | None = None
    _paths: set[Path] = field(default_factory=set)

    def is_due(self, path: Path, now: float) -> bool:
        """Whether a check should follow the step that has just ended."""
        self._num_steps += 1
        is_new = path not in self._paths and len(self._paths) < MOST_PATHS
        self._paths.add(path)
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
