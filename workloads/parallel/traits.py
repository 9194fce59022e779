"""Notes the traits of a candidate's code on its model, and refuses layouts that they rule out.

The trace of the plain layout, which none rules out, so collects all of them; ranks and other traces refuse in the same
words.
"""

from __future__ import annotations

from torch import nn

from estimators.model import Layout
from estimators.traits import NO_TRAITS, Traits
from workloads.parallel.forward_state.snapshot import TRAITS
from workloads.refusals import WorkloadError


def note(model: nn.Module, layout: Layout, **why: str) -> None:
    """Note traits of the code that trains ``model``, each by its name; one without words is none.

    Raises ``WorkloadError`` if they rule out ``layout``.
    """
    traits = Traits(**why)
    model.__dict__[TRAITS] = traits_of(model) | traits
    if refusal := traits.refusal(layout):
        raise WorkloadError(refusal)


def traits_of(model: nn.Module) -> Traits:
    """The traits that were noted."""
    traits: Traits = model.__dict__.get(TRAITS, NO_TRAITS)
    return traits
