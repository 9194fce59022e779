"""Passes that repeat an earlier one, as a recomputed block does in the backward pass, without changing state again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from torch import nn

from workloads.parallel.forward_state.snapshot import ModuleSnapshot
from workloads.parallel.forward_state.state import ForwardState


class RepeatedPasses:
    """Passes that repeat the first of them: each begins from the state before the first, and changes nothing.

    Only the first one changes the state. Each uses the parameters that the first one used, which may have been those of
    a ``functional_call``.
    """

    def __init__(self, state: ForwardState, module: nn.Module) -> None:
        self._state, self._module = state, module
        self._before: ModuleSnapshot | None = None
        self._parameters: list[dict[str, nn.Parameter | None]] = []

    def context(self, inner: AbstractContextManager[Any]) -> AbstractContextManager[None]:
        """A context for any number of passes, one after another; each is also inside of ``inner``."""
        return _Reentered(self._one_pass, inner)

    @contextlib.contextmanager
    def _one_pass(self) -> Iterator[None]:
        state, now = self._state, self._state.snapshot(self._module)
        parameters = [dict(module._parameters) for module in self._module.modules()]
        if self._before is not None:
            self._before.restore()
            self._use(self._parameters)
            try:
                yield
            finally:
                self._use(parameters)
                now.restore()
            return
        self._before, self._parameters = now, parameters
        if state.is_known:
            yield
            return
        with state.watching(self._module, None, keeps=True) as watch:
            yield
        now.add(watch.changed)

    def _use(self, parameters: Sequence[dict[str, nn.Parameter | None]]) -> None:
        for module, own_parameters in zip(self._module.modules(), parameters, strict=True):
            module._parameters.update(own_parameters)


class _Reentered(AbstractContextManager[None]):
    """``inner`` inside of a new ``outer`` each time: gradients of gradients compute a block more than twice."""

    def __init__(self, outer: Callable[[], AbstractContextManager[None]], inner: AbstractContextManager[Any]) -> None:
        self._outer, self._inner = outer, inner
        self._entered: list[ExitStack] = []

    def __enter__(self) -> None:
        with ExitStack() as stack:
            stack.enter_context(self._outer())
            stack.enter_context(self._inner)
            self._entered.append(stack.pop_all())

    def __exit__(self, *error: Any) -> bool | None:
        return self._entered.pop().__exit__(*error)
