"""Builds a model with real numbers that is cheap to run: of many equal blocks it keeps two, and draws all parameters.

Checks of how a model can be divided run it, whole and in parts. The parameters are random, none of them zero, because a
part that a fresh model multiplies by zero, such as a table of positions, could not be seen.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor, nn

from estimators.tracing.blocks import are_equal, container_of, shorten
from estimators.tracing.session.modes import NoInit
from scamp.workload.seeds import seed_everything
from workloads.parallel.forward_state.snapshot import has_fractions, real_numbers
from workloads.parallel.tp_plan.notation import described
from workloads.protocol import Workload
from workloads.training.outline import model_of, outline_of

NUM_BLOCKS = 2
MOST_PARAMETERS = 1_500_000_000
"""Most parameters of the whole model. Memory that nobody writes to costs nothing, but addresses are limited."""
MOST_KEPT_PARAMETERS = 200_000_000
TOLERANCE = 1e-3
"""Largest relative difference that counts as rounding, which makes some 1e-6."""


def small_model(workload: Workload) -> nn.Module | None:
    """The model in host memory, in evaluation mode; None if it is too large."""
    if sum(parameter.numel() for parameter in outline_of(workload).parameters()) > MOST_PARAMETERS:
        return None
    with NoInit():
        model = described(workload, model_of(workload))
    blocks = list(dict.fromkeys(workload.blocks(model)))
    if len(blocks) > NUM_BLOCKS and are_equal(blocks) and container_of(model, blocks) is not None:
        shorten(model, blocks, NUM_BLOCKS)
    if sum(parameter.numel() for parameter in model.parameters()) > MOST_KEPT_PARAMETERS:
        return None
    seed_everything(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if has_fractions(parameter):
                parameter.normal_(1.0 if parameter.ndim < 2 else 0.0, _spread(parameter))
    return model.eval()


def _spread(parameter: nn.Parameter) -> float:
    return 0.1 if parameter.ndim < 2 else 1 / sqrt(parameter.shape[-1])


def are_close(tensor: Tensor, other: Tensor, undivided: Tensor | None = None) -> bool:
    """Whether all numbers are equal but for rounding, relative to the largest of ``undivided``, by default ``other``.

    Numbers that are not finite prove nothing, and count as equal.
    """
    first, second, scale = (
        real_numbers(tensor.detach()).double() for tensor in (tensor, other, other if undivided is None else undivided)
    )
    if not tensor.numel() or not all(bool(tensor.isfinite().all()) for tensor in (first, second, scale)):
        return True
    return float((first - second).abs().max()) <= TOLERANCE * float(scale.abs().max())
