"""Makes a workload from a plain function: enough to estimate its cost, not to train it (see ``docs/estimate.md``)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn

from torch import Tensor, nn
from torch.optim import Optimizer

from workloads.protocol import Batch, Workload

_SERVICE_PARAMS = ("batch", "lr", "weight_decay")  # read by ScaMP; passed on only to functions that take them


class FunctionWorkload(Workload):
    """A workload from ``make(**params)``, which returns ``(model, inputs[, loss[, optimizer]])``.

    ``inputs(batch)`` returns the model's arguments for that many samples: a dict (keyword arguments), a tuple or a
    tensor. ``loss(model, inputs)`` returns a scalar; without it, the loss is the model's output itself or the output's
    attribute ``loss``, as in Hugging Face's transformers. ``optimizer(parameters)`` returns the optimizer; without it,
    the optimizer is AdamW.
    """

    num_train = num_eval = 2**31 - 1

    def __init__(self, make: Callable[..., Any], params: Mapping[str, Any]) -> None:
        """Raises ``ValueError`` where ``params`` do not fit the signature of ``make``."""
        super().__init__(params)
        signature = inspect.signature(make)
        wanted = signature.parameters.values()
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in wanted)
        given = {n: v for n, v in params.items() if takes_all or n in signature.parameters or n not in _SERVICE_PARAMS}
        try:
            signature.bind(**given)
        except TypeError as error:
            raise ValueError(f"{make.__name__}{signature} cannot be called with these parameters: {error}") from None
        self._make = partial(make, **given)
        self._inputs: Callable[[int], Batch] | None = None
        self._loss: Callable[[nn.Module, Batch], Tensor] = _own_loss
        self._optimizer: Callable[..., Optimizer] | None = None

    def build_model(self) -> nn.Module:
        """Call the function, keep its other results, and return its model. Raises ``TypeError`` for a wrong result."""
        made = self._make()
        if not (isinstance(made, tuple) and 2 <= len(made) <= 4 and isinstance(made[0], nn.Module)):
            raise TypeError(f"the function must return (model, inputs[, loss[, optimizer]]), not {_kinds(made)}")
        model: nn.Module
        model, self._inputs, *more = made
        if more and more[0] is not None:
            self._loss = more[0]
        if len(more) == 2:
            self._optimizer = more[1]
        return model

    def train_batch(self, indices: Tensor) -> Batch:
        """Inputs for ``len(indices)`` samples; call ``build_model`` before."""
        assert self._inputs is not None, "call build_model before train_batch"
        return self._inputs(len(indices))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return self._loss(model, batch)

    def optimizer(self, model: nn.Module) -> Optimizer:
        return self._optimizer(model.parameters()) if self._optimizer else super().optimizer(model)

    def eval_batch(self, indices: Tensor) -> NoReturn:
        """Raises ``NotImplementedError``: an estimate evaluates nothing."""
        raise NotImplementedError("a function can be estimated but not trained: write a subclass of Workload to train")

    def evaluate(self, model: nn.Module, batch: Batch) -> NoReturn:
        """Raises ``NotImplementedError``: an estimate evaluates nothing."""
        raise NotImplementedError("a function can be estimated but not trained: write a subclass of Workload to train")


def _own_loss(model: nn.Module, batch: Batch) -> Tensor:
    if isinstance(batch, Mapping):
        output = model(**batch)
    else:
        output = model(*batch) if isinstance(batch, tuple | list) else model(batch)
    loss = output if isinstance(output, Tensor) else getattr(output, "loss", None)
    if not isinstance(loss, Tensor) or loss.ndim:
        raise TypeError(
            f"the model returns {_kinds(output)}, which is not a loss: return (model, inputs, loss) from the function"
        )
    return loss


def _kinds(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_kinds, value))})"
    return f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
