"""Numbers that users' code takes out of distributed tensors are those of the tensor, not of the rank's part of it.

A DTensor of which one number is read, as by float() or bool(), gives that of its local tensor: of a norm, or of whether
all are finite, that is what this rank's shard contributes. So an optimizer that clips, or skips a step, would decide
otherwise on each rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor

_READ = torch.ops.aten._local_scalar_dense.default


def read_numbers_of_all_ranks() -> None:
    """Have all ranks put their parts together, from now on, where one number is read; so all must read it."""
    handlers: Any = DTensor._op_dispatcher._custom_op_handlers
    handlers[_READ] = _read


def _read(operation: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    tensor: DTensor = args[0]
    local = tensor._local_tensor
    if isinstance(local, FakeTensor) or all(placement.is_replicate() for placement in tensor.placements):
        return _READ(local)
    if local.dtype is not torch.bool:
        return _READ(tensor.full_tensor())
    as_numbers = DTensor.from_local(local.to(torch.uint8), tensor.device_mesh, tensor.placements, run_check=False)
    return bool(_READ(as_numbers.full_tensor()))  # not all backends add booleans
