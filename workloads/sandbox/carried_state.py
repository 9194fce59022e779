"""Traces a workload, and explains a trace that fails because its loss keeps tensors between calls.

A trace calls the loss with several numbers of samples, and so do micro-batches. State of another number of samples then
fits no more, which torch reports as wrong sizes. So a trace that fails is repeated with a workload that forgets.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from estimators.model import Layout
from estimators.trace import Trace
from estimators.tracing.session.recipe import Recipe
from estimators.tracing.tracer import trace
from workloads.protocol import Workload
from workloads.refusals import MESSAGE_CHARACTERS, WrongResult, frames_of, raised_in, shortened

log = logging.getLogger("scamp.tracing")


def traced(workload: Workload, recipe: Recipe, layout: Layout, batch: int, equal_blocks: bool | None) -> Trace:
    """The trace of ``recipe``, which is that of ``workload``.

    Raises ``WrongResult`` if it fails only because the workload keeps tensors from one call of its loss to the next.
    """
    before = dict(vars(workload))
    try:
        return trace(recipe, layout, batch, equal_blocks)
    except Exception as error:
        kept = [f"self.{name}" for name, value in vars(workload).items() if _is_kept(before.get(name), value)]
        if not kept or not _succeeds_without_state(workload, before, recipe, layout, batch, equal_blocks):
            raise
        raise raised_in(_refusal(" and ".join(kept), error), frames_of(error)) from None


def _refusal(kept: str, error: Exception) -> WrongResult:
    text = shortened(" ".join(str(error).split()), MESSAGE_CHARACTERS)
    return WrongResult(
        None,
        f"the loss keeps {kept} between calls, and its state of another number of samples does not fit: {text}",
        "keep nothing in the workload, or begin with new state where the number of samples differs: a prediction calls "
        "the loss with 1, 2, 3 and all samples of a batch",
    )


def _is_kept(before: object, after: object) -> bool:
    """Whether an attribute was given tensors that have sizes; the size of a single number fits everywhere."""
    return after is not before and any(isinstance(leaf, Tensor) and leaf.ndim for leaf in tree_leaves(after))


def _succeeds_without_state(
    workload: Workload,
    before: Mapping[str, Any],
    recipe: Recipe,
    layout: Layout,
    batch: int,
    equal_blocks: bool | None,
) -> bool:
    """Whether the trace succeeds with a workload that forgets in each step what the step has kept in it."""

    def forgetting(*args: Any) -> Any:
        kept = dict(vars(workload))
        try:
            return recipe.train_step(*args)
        finally:
            _restore(workload, kept)

    _restore(workload, before)
    try:
        trace(replace(recipe, train_step=forgetting), layout, batch, equal_blocks)
    except Exception:
        log.debug("the trace fails without what the workload keeps, too", exc_info=True)
        return False
    return True


def _restore(workload: Workload, attributes: Mapping[str, Any]) -> None:
    vars(workload).clear()
    vars(workload).update(attributes)
