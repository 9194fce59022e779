"""A ``forward`` that takes the place of a module's own, and what a copy of the module has."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

from workloads.refusals import WorkloadError


class ReplacedForward:
    """Calls ``call`` instead of a module's ``forward``: an attribute of the instance, not a wrapper module, as names in
    checkpoints do not depend on the plan.

    A copy of the module, such as a teacher of the user's, has its own ``forward`` again. Where that would compute
    something else than the whole module, copies are refused; ``instead`` says which plans allow them, as ``tp=1``.
    """

    def __init__(self, call: Callable[..., Any], forward: Callable[..., Any], instead: str = "") -> None:
        self._call, self._forward, self._instead = call, forward, instead
        functools.update_wrapper(self, forward)  # whose signature models look at

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., Any]:
        if self._instead:
            raise WorkloadError(
                "a copy of the model is made where each rank has only a part of it: make it in build_model, as a part "
                f"of the model, or use plans with {self._instead}"
            )
        copied: Callable[..., Any] = copy.deepcopy(self._forward, memo)  # of a method: that of the copied module
        return copied
