"""The precision of passes: autocast to bf16 or fp16, or copies of the weights in bf16. Ranks hold and update fp32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from workloads.options import TrainingOptions
from workloads.parallel.mixed_precision import MixedPrecision
from workloads.protocol import Workload

_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def options_of(workload: Workload) -> TrainingOptions:
    """The options of the candidate; those of a workload that keeps no parameters are the defaults."""
    return TrainingOptions.of(getattr(workload, "params", None) or {})


def mixed_precision_of(workload: Workload) -> MixedPrecision | None:
    """The precision of copies of the parameters with which passes compute; None: they compute with the parameters."""
    options = options_of(workload)
    if options.precision != "bf16-params":
        return None
    return MixedPrecision(torch.bfloat16, _TYPES.get(options.reduce_precision, torch.float32))


def low_types(loss: object) -> set[torch.dtype]:
    """The types of 16 bits in which a loss was computed, in part, whether by an option or by the workload itself."""
    pending, seen, low = [getattr(loss, "grad_fn", None)], set[Any](), set[torch.dtype]()
    while pending:
        node: Any = pending.pop()
        if node is not None and node not in seen:
            seen.add(node)
            low |= {result.dtype for result in node._input_metadata} & {torch.bfloat16, torch.float16}
            pending += [before for before, _ in node.next_functions]
    return low


def autocast(workload: Workload, model: nn.Module) -> AbstractContextManager[object]:
    """The context in which ``model`` and its loss run."""
    kind = _TYPES.get(options_of(workload).precision)
    if kind is None:
        return nullcontext()
    parameter = next(model.parameters(), None)
    device = parameter.device.type if parameter is not None else "cpu"
    # Without gradients a cast weight is used once; kept, those of all layers would be alive together.
    return torch.autocast("cpu" if device == "meta" else device, kind, cache_enabled=torch.is_grad_enabled())
