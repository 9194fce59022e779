"""Traces a workload whose loss keeps tensors between calls that have the size of its samples.

A trace calls the loss with several numbers of samples, and so do micro-batches. State of another number of samples then
fits no more, which torch reports as wrong sizes. So a trace that fails is repeated with a workload that begins each
step without it: such a candidate trains under plans that do not divide a batch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from estimators.model import Layout
from estimators.trace import Trace
from estimators.tracing.session.recipe import Recipe
from estimators.tracing.tracer import trace
from estimators.traits import Traits
from workloads.protocol import Workload


def traced(workload: Workload, recipe: Recipe, layout: Layout, batch: int, equal_blocks: bool | None) -> Trace:
    """The trace of ``recipe``, which is that of ``workload``."""
    before = dict(vars(workload))
    try:
        return trace(recipe, layout, batch, equal_blocks)
    except Exception as error:
        names = [name for name, value in vars(workload).items() if _is_kept(before.get(name), value)]
        vars(workload).clear()
        vars(workload).update(before)

        def begin_anew(*args: Any) -> Any:
            for name in names:
                vars(workload).pop(name, None)
            vars(workload).update({name: before[name] for name in names if name in before})
            return recipe.train_step(*args)

        try:
            anew = trace(replace(recipe, train_step=begin_anew), layout, batch, equal_blocks) if names else None
        except Exception:
            anew = None
        if anew is None:
            raise error from None
    why = (
        f"the loss keeps {' and '.join(f'self.{name}' for name in names)} between calls, which has the size of its "
        "samples: give the batch one device, or begin with new state where their number differs"
    )
    return replace(anew, traits=anew.traits | Traits(couples_samples="" if workload.accepts_parts else why))


def _is_kept(before: object, after: object) -> bool:
    """Whether an attribute was given tensors that have sizes; the size of a single number fits everywhere."""
    return after is not before and any(isinstance(leaf, Tensor) and leaf.ndim for leaf in tree_leaves(after))
