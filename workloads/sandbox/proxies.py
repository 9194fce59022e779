"""Zero-cost proxies: numbers that a network has before it is trained, by which candidates can be ranked.

They are computed on one real batch with fresh weights. More is better, as far as they say anything: measure on your own
models how well they rank (``python -m benchmarks.search`` does so on a table).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import FlopCounterMode

from estimators.tracing.session.modes import NoInit
from scamp.workload.seeds import seed_everything
from workloads.parallel.forward_state.snapshot import has_fractions, real_numbers
from workloads.protocol import Batch, Workload
from workloads.refusals import WorkloadError, expect_loss, expect_model
from workloads.training.data.batch_transform import step_batch
from workloads.training.outline import outline_of

NUM_SAMPLES = 32
"""Most samples of the batch."""


def parameters(workload: Workload, batch: int) -> float:
    """Number of the model's parameters."""
    return float(sum(parameter.numel() for parameter in outline_of(workload).parameters()))


def flops(workload: Workload, batch: int) -> float:
    """FLOPs of a forward pass of one sample, whatever the size of the model: its tensors are fake."""
    inputs = _train_batch(workload, batch)
    with FakeTensorMode(allow_non_fake_inputs=True), NoInit(), torch.no_grad():
        model = workload.build_model()
        with FlopCounterMode(display=False) as counter:
            workload.loss(model, inputs)
    return float(counter.get_total_flops()) / _num_samples(workload, batch)


def grad_norm(workload: Workload, batch: int) -> float:
    """Sum over the parameters of the Euclidean norm of the gradient (Abdelfattah et al. 2021)."""
    model = _model(workload)
    loss, _ = expect_loss(workload.loss(model, _train_batch(workload, batch)), workload.loss)
    loss.backward()  # type: ignore[no-untyped-call]
    return sum(float(parameter.grad.norm()) for parameter in model.parameters() if parameter.grad is not None)


def jacob_cov(workload: Workload, batch: int) -> float:
    """How differently the network reacts to different samples, by the correlations of its input gradients.

    That is the score of Mellor et al. 2020 (arXiv 2006.04647v1): the sum of -(log(v + k) + 1 / (v + k)) over the
    eigenvalues v of the matrix of correlations, with k = 1e-5.
    """
    model = _model(workload)
    batch_inputs = _train_batch(workload, batch)
    inputs = [leaf for leaf in tree_leaves(batch_inputs) if isinstance(leaf, Tensor) and has_fractions(leaf)]
    if not inputs:
        raise WorkloadError("jacob_cov needs samples of floating-point numbers: choose another proxy")
    for leaf in inputs:
        leaf.requires_grad_()
    _sum(_output(workload, model, batch_inputs)).backward()  # type: ignore[no-untyped-call]
    gradients = [real_numbers(leaf.grad.resolve_conj()) for leaf in inputs if leaf.grad is not None]
    rows = torch.cat([gradient.flatten(1) for gradient in gradients], 1).double()
    values = torch.linalg.eigvalsh(torch.nan_to_num(torch.corrcoef(rows))) + 1e-5
    return -float((values.clamp_min(1e-5).log() + 1 / values.clamp_min(1e-5)).sum())


PROXIES: Mapping[str, Callable[[Workload, int], float]] = {
    "parameters": parameters,
    "flops": flops,
    "grad_norm": grad_norm,
    "jacob_cov": jacob_cov,
}
"""Functions of a workload and its batch."""


def proxy(name: str, workload: Workload, batch: int, seed: int) -> float | None:
    """The value of the proxy ``name``, the same for the same ``seed``; None if it is not a finite number."""
    torch.set_num_threads(1)
    seed_everything(seed, workload)
    value = PROXIES[name](workload, batch)
    return value if math.isfinite(value) else None


def _model(workload: Workload) -> nn.Module:
    return expect_model(workload.build_model(), workload.build_model).train()


def _num_samples(workload: Workload, batch: int) -> int:
    return min(batch, NUM_SAMPLES, workload.num_train)


def _train_batch(workload: Workload, batch: int) -> Batch:
    samples = step_batch(workload, torch.arange(_num_samples(workload, batch)))
    return tree_map_only(Tensor, lambda tensor: tensor.clone(), samples)  # data sets may hand out views of themselves


class _Called(Exception):
    """The model has returned ``output``."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output


def _output(workload: Workload, model: nn.Module, batch: Batch) -> Any:
    """The output of the first call of the model by the workload's loss."""
    with _stops_after(model):
        try:
            workload.loss(model, batch)
        except _Called as called:
            return called.output
    raise WorkloadError("this proxy needs a loss(model, batch) that calls the model: choose another proxy")


@contextmanager
def _stops_after(model: nn.Module) -> Iterator[None]:
    def stop(module: nn.Module, args: Any, output: Any) -> None:
        raise _Called(output)

    handle = model.register_forward_hook(stop)
    try:
        yield
    finally:
        handle.remove()


def _sum(output: Any) -> Tensor:
    """The sum of all numbers that a model returns."""
    if hasattr(output, "__dict__") and not isinstance(output, Tensor | Mapping):
        output = vars(output)
    leaves = tree_leaves(dict(output) if isinstance(output, Mapping) else output)
    numbers = [leaf for leaf in leaves if isinstance(leaf, Tensor) and has_fractions(leaf)]
    return torch.stack([real_numbers(leaf.resolve_conj()).sum() for leaf in numbers]).sum()
