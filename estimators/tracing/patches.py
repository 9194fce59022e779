"""Parts of torch that allocate or infer without an operation that a mode would see. Each function patches one of them
for as long as its context is open.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor._op_schema import OpSchema
from torch.distributed.tensor._sharding_prop import ShardingPropagator

_INFERENCE = "_propagate_tensor_meta_non_cached"


def resizes(resized: Callable[[torch.UntypedStorage], None]) -> AbstractContextManager[Any]:
    """Calls ``resized`` after each resize: FSDP2 frees and restores unsharded parameters by them."""
    resize = torch.UntypedStorage.resize_

    def watched(storage: torch.UntypedStorage, size: int) -> Any:
        result = resize(storage, size)
        resized(storage)
        return result

    return mock.patch.object(torch.UntypedStorage, "resize_", watched)


def shape_inference(paused: Callable[[], AbstractContextManager[None]]) -> AbstractContextManager[Any]:
    """Infers shapes of DTensors inside of ``paused()``: on fake tensors of the global shape, which exist on no rank."""
    propagate = getattr(ShardingPropagator, _INFERENCE)

    def in_pause(propagator: ShardingPropagator, schema: OpSchema) -> Any:
        if not schema.op._schema.returns:
            return None  # a fused optimizer returns nothing; for a deep model it takes long to find that out
        with paused():
            return propagate(propagator, schema)

    return mock.patch.object(ShardingPropagator, _INFERENCE, in_pause)


def random_states(taken: Callable[[torch.UntypedStorage], None]) -> AbstractContextManager[Any]:
    """Calls ``taken`` with each state of the random generator that is read: recomputed blocks keep them in host memory.

    They are real tensors.
    """
    get_state = torch.get_rng_state

    def watched() -> Tensor:
        state = get_state()
        taken(state.untyped_storage())
        return state

    return mock.patch.object(torch, "get_rng_state", watched)


@contextmanager
def fixed_draws(number: float | None, most: int) -> Iterator[None]:
    """Python and numpy draw this number between 0 and 1, the first ``most`` times; None: they draw at random."""
    if number is None:
        yield
        return
    at_random, left = random.random, iter(range(most))

    def draw() -> float:
        return at_random() if next(left, None) is None else number

    def draw_array(size: Any = None) -> Any:
        return draw() if size is None else np.full(size, draw())

    drawing: dict[Any, dict[str, Callable[..., Any]]] = {
        random: {"random": draw, "uniform": lambda a, b: a + (b - a) * draw()},
        np.random: {
            **dict.fromkeys(("random", "random_sample"), draw_array),
            "rand": lambda *size: draw_array(size or None),
            "uniform": lambda low=0.0, high=1.0, size=None: low + (high - low) * draw_array(size),
        },
    }
    with ExitStack() as patched:
        for module, functions in drawing.items():
            for name, function in functions.items():
                patched.enter_context(mock.patch.object(module, name, function))
        yield
