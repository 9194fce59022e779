"""Finds models that say that ranks can divide their samples (``Spatial``, ``Context``), but would train another curve.

A model may mix positions where no rank exchanges them: by an attention of its own, a mean over positions, positions
that it counts itself. Each rank would then compute something else than one process does, and nobody would notice. So
the model is run on whole samples, and on each of their slabs in turn. In place of what ranks exchange (inputs of
convolutions, keys and values of attention) a slab gets what the whole samples had there. All else must then be equal:
the inputs of these operations, and the means of losses and metrics over slabs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from scamp.workload.seeds import seed_everything
from workloads.parallel.exchanging.attention import intercept_attention
from workloads.parallel.spatial import EXCHANGING, is_global_pool, slab
from workloads.protocol import Batch, Context, Loss, Spatial, Workload
from workloads.refusals import in_enough_digits
from workloads.sandbox.small_model import are_close, small_model
from workloads.training.data.batch_transform import step_batch
from workloads.training.metrics import as_pair, split_evaluation
from workloads.training.step import layers_of_training
from workloads.training.updates.phases import phases_of
from workloads.trial import Slab

NUM_SAMPLES = 2
MOST_PRODUCTS = 5e10
"""Parameters × positions; of longer sequences only the beginning is run."""


def difference_of_slabs(workload: Workload, count: int) -> str:
    """How ``count`` slabs of a sample together give another loss or metric than the whole; empty if they do not.

    It is empty for a very large model, too. Raises any error of a model that cannot be run alone, and of a workload
    that reads slabs.
    """
    model = small_model(workload)
    spatial = getattr(model, "spatial", None)
    if model is None or not isinstance(spatial, Spatial):
        return ""
    seen, functions = _Seen(model, count), _functions(workload)
    indices = torch.arange(NUM_SAMPLES)
    batches = _batches(workload, indices)
    if workload.reads_slabs and (words := _different_batches(workload, model, indices, batches, count)):
        return words
    for name, (split, function) in functions.items():
        batch = _beginning(model, spatial, batches[split], count)
        with torch.no_grad(), layers_of_training(), seen.undivided():
            seed_everything(0)
            answer = function(model, batch)
        parts: list[Mapping[str, Loss]] = []
        for index in range(count):
            part = slab(model, batch, index, count)
            with torch.no_grad(), layers_of_training(), seen.slab(index):
                seed_everything(0)
                parts.append(function(model, part))
            if seen.different:
                return _words(model, spatial, count, f"{seen.different} differs from that of whole samples")
        for key, values in answer.items():
            of_all, of_slabs = _quotient([values]), _quotient([part[key] for part in parts])
            if not are_close(of_slabs, of_all):
                metric = f"{name} {key}".strip()
                numbers = " instead of ".join(in_enough_digits(*_most_different(of_slabs, of_all)))
                return _words(model, spatial, count, f"the mean {metric} of all slabs is {numbers}")
    return ""


def _batches(workload: Workload, indices: Tensor) -> dict[str, Batch]:
    """The batch that each kind of function takes."""
    return {
        "loss": step_batch(workload, indices % workload.num_train),
        "metric": workload.eval_batch(indices % workload.num_eval),
    }


def _different_batches(
    workload: Workload, model: nn.Module, indices: Tensor, undivided: Mapping[str, Batch], count: int
) -> str:
    """Words for a slab that the workload reads otherwise than as a part of whole samples; empty if there is none."""
    trial = workload.trial
    try:
        for index in range(count):
            workload.trial = replace(trial, slab=Slab(index, count))
            for name, batch in _batches(workload, indices).items():
                parts, read = tree_leaves(slab(model, undivided[name], index, count)), tree_leaves(batch)
                if len(parts) != len(read) or not all(map(torch.equal, parts, read)):
                    method = "train_batch" if name == "loss" else "eval_batch"
                    return (
                        f"{method} returns for slab {index} of {count} something else than this part of whole samples, "
                        "although reads_slabs says so: return the part that trial.slab.of(size) names of each "
                        "dimension that `spatial` divides, and the rest whole"
                    )
    finally:
        workload.trial = trial
    return ""


def _words(model: nn.Module, spatial: Spatial, count: int, difference: str) -> str:
    if isinstance(spatial, Context):
        unit, among = "sequences", "an attention that does not call scaled_dot_product_attention, positions counted in "
        among += "forward instead of in the batch, a mean over positions, or a loss that leaves positions out"
    else:
        unit, among = "samples", "an interpolation or padding that is a function, a position that forward counts, or a "
        among += "linear layer after a mean over all positions"
    return (
        f"ranks cannot divide {unit} of {type(model).__name__}, although its attribute `spatial` says so: with {count} "
        f"slabs {difference}. Look for {among}; or leave `spatial` out"
    )


def _functions(
    workload: Workload,
) -> dict[str, tuple[str, Callable[[nn.Module, Batch], Mapping[str, Loss]]]]:
    """Word for what is computed → (which batch it takes, the function)."""
    losses = {phase.name: phase.loss for phase in phases_of(workload)} or {"": workload.loss}

    def losses_of(model: nn.Module, batch: Batch) -> dict[str, Loss]:
        return {name: loss(model, batch) for name, loss in losses.items()}

    def metrics_of(model: nn.Module, batch: Batch) -> Mapping[str, Loss]:
        return split_evaluation(workload, workload.evaluate(model, batch))[0]

    return {"loss": ("loss", losses_of), "metric": ("metric", metrics_of)}


def _quotient(parts: Sequence[Loss]) -> Tensor:
    """The mean of equal parts, or their sum divided by the sum of their counts."""
    totals, counts = zip(*map(as_pair, parts), strict=True)
    return torch.stack(totals).sum(0) / torch.stack(counts).sum(0)


def _most_different(values: Tensor, others: Tensor) -> tuple[float, float]:
    """The values of the sample in which they differ most, or the only ones."""
    place = int((values - others).abs().nan_to_num().argmax())
    return float(values.reshape(-1)[place]), float(others.reshape(-1)[place])


def _beginning(model: nn.Module, spatial: Spatial, batch: Batch, count: int) -> Batch:
    """The batch, or the first positions of its sequences where all of them would take long."""
    if not isinstance(spatial, Context):
        return batch
    leaves, tree = tree_flatten(batch)
    sizes = [leaf.shape[dim] for leaf, dim in zip(leaves, spatial.dims, strict=True) if dim is not None]
    num_parameters, shortest = sum(parameter.numel() for parameter in model.parameters()), min(sizes)
    factor = 1
    while num_parameters * shortest * NUM_SAMPLES / factor > MOST_PRODUCTS and _divides(2 * factor * count, sizes):
        factor *= 2
    return tree_unflatten(
        [
            leaf if dim is None else leaf.narrow(dim, 0, leaf.shape[dim] // factor)
            for leaf, dim in zip(leaves, spatial.dims, strict=True)
        ],
        tree,
    )


def _divides(number: int, sizes: list[int]) -> bool:
    return all(size % number == 0 and size // number > 1 for size in sizes)


class _Seen:
    """Notes of what whole samples had where ranks exchange something, and of what each module returned.

    ``different`` names the first that differs for a slab, empty if none does.
    """

    def __init__(self, model: nn.Module, count: int) -> None:
        self._count, self._index, self.different = count, -1, ""
        self._inputs: list[tuple[Tensor, ...]] = []
        self._outputs: list[Tensor] = []
        self._returned: list[tuple[str, Tensor | None]] = []
        self._num_calls = self._num_returned = 0
        for name, module in model.named_modules():
            if isinstance(module, EXCHANGING) or is_global_pool(module):
                module.forward = self._around(name, module, module.forward)
            module.register_forward_hook(self._note(name, module))
        if isinstance(getattr(model, "spatial", None), Context):
            intercept_attention(model, self._attention)

    @contextmanager
    def undivided(self) -> Iterator[None]:
        """Take notes of what runs on whole samples."""
        self._index = -1
        for notes in (self._inputs, self._outputs, self._returned):
            notes.clear()
        yield

    @contextmanager
    def slab(self, index: int) -> Iterator[None]:
        """Compare what runs on slab ``index`` with the notes."""
        self._index, self._num_calls, self._num_returned = index, 0, 0
        yield

    def _around(self, name: str, module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(x: Tensor) -> Tensor:
            where = f"the input of {name or type(module).__name__}"
            return self._exchange(where, (x,), 2, lambda: forward(x))

        return run

    def _attention(self, *args: Any, **kwargs: Any) -> Tensor:
        named_args = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
        tensors = tuple(named_args[name] for name in ("query", "key", "value"))
        where = f"the input of scaled_dot_product_attention, call {self._num_calls + 1},"
        return self._exchange(where, tensors, -2, lambda: functional.scaled_dot_product_attention(*args, **kwargs))

    def _exchange(self, where: str, inputs: tuple[Tensor, ...], dim: int, compute: Callable[[], Tensor]) -> Tensor:
        """The output of an operation: computed of whole samples, for a slab its part of what these had."""
        if self._index < 0:
            self._inputs.append(tuple(tensor.clone() for tensor in inputs))  # they may be changed in place afterwards
            output = compute()
            self._outputs.append(output.clone())
            return output
        whole_inputs, output = self._inputs[self._num_calls], self._outputs[self._num_calls]
        self._num_calls += 1
        for of_slab, of_all in zip(inputs, whole_inputs, strict=True):
            if not self._is_part(of_slab, of_all, dim):
                self._differs(where)
        is_pooled = output.shape[dim] < self._count
        return (output if is_pooled else output.chunk(self._count, dim)[self._index]).clone()

    def _note(self, name: str, module: nn.Module) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            tensor = output if isinstance(output, Tensor) else None
            if self._index < 0:
                self._returned.append((name, None if tensor is None else tensor.clone()))
                return
            known_name, whole_tensor = self._returned[self._num_returned]
            self._num_returned += 1
            if known_name != name or tensor is None or whole_tensor is None or tensor.ndim != whole_tensor.ndim:
                return
            dims = [dim for dim in range(tensor.ndim) if tensor.shape[dim] != whole_tensor.shape[dim]]
            if len(dims) == 1 and not self._is_part(tensor, whole_tensor, dims[0]):
                self._differs(f"the output of {name or 'the model'} ({type(module).__name__})")

        return hook

    def _is_part(self, of_slab: Tensor, undivided: Tensor, dim: int) -> bool:
        """Whether ``of_slab`` is this slab's part of ``undivided``, or all of it, as where it is not divided."""
        if of_slab.shape == undivided.shape and are_close(of_slab, undivided):
            return True
        part = undivided.chunk(self._count, dim)[self._index]
        return of_slab.shape == part.shape and are_close(of_slab, part, undivided)

    def _differs(self, where: str) -> None:
        self.different = self.different or where
