"""Makes a workload from a plain function: enough to estimate its cost, not to train it (see ``docs/functions.md``)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from workloads.options import NAMES as OPTIONS
from workloads.protocol import Batch, Loss, Optimizers, Workload
from workloads.refusals import WrongResult, expect_loss, expect_minimised, expect_optimizer, kinds_of

_SERVICE_PARAMS = ("batch", "lr", "weight_decay", *OPTIONS)  # read by ScaMP; passed on only to functions that take them


class FunctionWorkload(Workload):
    """A workload from ``make(**params)``, which returns ``(model, inputs[, loss[, optimizer]])``.

    ``inputs(batch)`` returns the model's arguments for that many samples: a dict (keyword arguments), a tuple or a
    tensor. ``loss(model, inputs)`` returns a scalar; without it, the loss is the model's output itself or the output's
    attribute ``loss``, as in Hugging Face's transformers. ``optimizer(parameters)`` returns the optimizer; without it,
    the optimizer is AdamW.
    """

    num_train = num_eval = 2**31 - 1
    accepts_parts = True  # its inputs are drawn for a number of samples, and it is never trained

    def __init__(self, make: Callable[..., Any], params: Mapping[str, Any]) -> None:
        """Raises ``ValueError`` where ``params`` do not fit the signature of ``make``."""
        super().__init__(params)
        signature = inspect.signature(make)
        parameters = signature.parameters.values()
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        arguments = {
            n: v for n, v in params.items() if takes_all or n in signature.parameters or n not in _SERVICE_PARAMS
        }
        try:
            signature.bind(**arguments)
        except TypeError as error:
            raise ValueError(f"{make.__name__}{signature} cannot be called with these parameters: {error}") from None
        self._make, self._call = make, partial(make, **arguments)
        self._inputs: Callable[[int], Batch] | None = None
        self._follows_batch = False  # known once ``inputs`` was called
        self._loss: Callable[[nn.Module, Batch], Tensor] | None = None
        self._optimizer: Callable[..., Optimizer] | None = None

    def build_model(self) -> nn.Module:
        """Call the function, keep its other results, and return its model. Raises ``WrongResult``."""
        result = self._call()
        if not (isinstance(result, tuple) and 2 <= len(result) <= 4 and isinstance(result[0], nn.Module)):
            raise WrongResult(
                self._make,
                f"must return (model, inputs[, loss[, optimizer]]), not {kinds_of(result)}",
                "return the model, and a function that makes its inputs",
            )
        model: nn.Module
        model, self._inputs, *more = result
        for name, function in zip(("inputs", "loss", "optimizer"), (self._inputs, *more), strict=False):
            if not callable(function) and (function is not None or name == "inputs"):
                raise WrongResult(
                    self._make,
                    f"returns {kinds_of(function)} as {name}, which must be a function",
                    "return inputs(batch), loss(model, inputs) and optimizer(parameters) uncalled",
                )
        if more and more[0] is not None:
            self._loss = more[0]
        if len(more) == 2:
            self._optimizer = more[1]
        return model

    def train_batch(self, indices: Tensor) -> Batch:
        """Inputs for ``len(indices)`` samples; call ``build_model`` before. Raises ``WrongResult``."""
        if not self._follows_batch:
            self._check_inputs()
        return self._inputs_of(len(indices))

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        if self._loss is None:
            return self._own_loss(model, batch)
        try:
            loss: Loss = self._loss(model, batch)
            expect_loss(loss, self._loss)
            return loss
        except (TypeError, AttributeError) as error:
            if not re.search(rf"\b{type(model).__name__}\b", str(error)):
                raise
            raise WrongResult(
                self._loss,
                f"takes the model for its output ({error})",
                "call the model in it, such as loss(model, inputs): mse_loss(model(inputs), …)",
            ) from error

    def optimizer(self, model: nn.Module) -> Optimizers:
        if self._optimizer is None:
            return super().optimizer(model)
        return expect_optimizer(self._optimizer(model.parameters()), self._optimizer)

    def eval_batch(self, indices: Tensor) -> NoReturn:
        """Raises ``NotImplementedError``: an estimate evaluates nothing."""
        raise NotImplementedError("a function can be estimated but not trained: write a subclass of Workload to train")

    def evaluate(self, model: nn.Module, batch: Batch) -> NoReturn:
        """Raises ``NotImplementedError``: an estimate evaluates nothing."""
        raise NotImplementedError("a function can be estimated but not trained: write a subclass of Workload to train")

    def _inputs_of(self, num_samples: int) -> Batch:
        assert self._inputs is not None, "call build_model before train_batch"
        inputs = self._inputs(num_samples)
        return dict(inputs) if isinstance(inputs, Mapping) else inputs  # a tokenizer returns a mapping of its own

    def _check_inputs(self) -> None:
        """Raise ``WrongResult`` unless some dimension of some tensor follows the number of samples."""
        assert self._inputs is not None, "call build_model before train_batch"
        inputs = [self._inputs_of(num_samples) for num_samples in (2, 3)]
        two, three = ([leaf.shape for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)] for outputs in inputs)
        if not two:
            raise WrongResult(
                self._inputs,
                f"returns {kinds_of(inputs[0])}, which holds no tensor",
                "return a dict, a tuple or a tensor",
            )
        if two == three:
            raise WrongResult(
                self._inputs,
                "ignores its argument: 2 and 3 samples have the same sizes",
                "make tensors for as many samples as asked for, such as torch.zeros(batch, …)",
            )
        self._follows_batch = True

    def _own_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        if isinstance(batch, Mapping):
            output = model(**batch)
        else:
            output = model(*batch) if isinstance(batch, tuple | list) else model(batch)
        loss = output if isinstance(output, Tensor) else getattr(output, "loss", None)
        if not isinstance(loss, Tensor) or loss.ndim:
            raise WrongResult(
                self._make,
                f"its model returns {kinds_of(output)}, which is not a loss",
                "return (model, inputs, loss), where loss(model, inputs) returns one number",
            )
        return expect_minimised(loss, self._make)
