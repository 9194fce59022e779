"""Runs a rank's stages of a pipeline on a workload's micro-batches. Ranks and the tracer call it.

torch runs the passes: GPipe and 1F1B by schedules of its own, all others in the order of
``estimators.pipelining.schedules``. The latter needs torch's private runtime, which is used here alone. The first stage
turns batches into inputs; the last stage computes losses. Every stage knows the shape of its inputs without asking
other ranks, because a trace has no other ranks. Import this module only where it is needed:
torch.distributed.pipelining takes a second to import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from itertools import islice
from typing import Any, NoReturn, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import _Action, _ComputationType, _PipelineScheduleRuntime
from torch.distributed.pipelining.stage import InferenceMode  # type: ignore[attr-defined]
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from estimators.model import Stage
from estimators.pipelining.passes import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD
from estimators.pipelining.schedules import holders_of, schedule_of
from workloads.parallel.chain import only
from workloads.protocol import Batch, Chain, Workload
from workloads.refusals import WorkloadError

_SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}
_PASSES = {
    FORWARD: _ComputationType.FORWARD,
    BACKWARD: _ComputationType.FULL_BACKWARD,
    BACKWARD_INPUT: _ComputationType.BACKWARD_INPUT,
    BACKWARD_WEIGHT: _ComputationType.BACKWARD_WEIGHT,
}

Context = Callable[[], AbstractContextManager[object]]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and named arguments with which a loss calls the model: tensors, or trees with tensors."""


def run_passes(
    loss_of: Callable[[nn.Module, Batch], Any],
    model: Chain,
    micro_batches: Iterable[Batch],
    num: int,
    minimised: Callable[[Any], Tensor],
    precision: Context = nullcontext,
) -> None:
    """Run forward and backward of ``num`` micro-batches through the stages in ``model``, in the order of the schedule.

    Forward passes run in the context ``precision``; stages send fp32 in any. On the last stage ``minimised`` takes what
    ``loss_of`` returns for each micro-batch, and gives the number that its backward pass begins with.
    Gradients are summed over the micro-batches. It must call the model exactly once.
    """
    assert model.place is not None, "the model is not a pipeline stage"
    has_end = model.is_first or model.is_last
    batches = list(micro_batches if has_end else islice(micro_batches, 1))
    hidden = torch.empty(model.hidden_shape(_num_samples(batches[0])), device="meta", requires_grad=True)
    entered = _Entered([_inputs_of(loss_of, batch) for batch in batches]) if model.is_first else None
    inputs = entered.tensors if entered else None
    targets = batches if model.is_last else None
    place, held = model.place, model.place.stages
    stages = [
        PipelineStage(
            model if len(held) == 1 else _Part(model, stage),
            stage.index,
            stage.count,
            next(model.parameters()).device,
            input_args=inputs[0] if inputs and stage.index == 0 else hidden,
            output_args=hidden,
            group=place.group,
        )
        for stage in held
    ]
    del batches, hidden

    def loss(output: Tensor, batch: Batch) -> Tensor:
        with precision():
            returned = loss_of(cast(nn.Module, _Given(loss_of, output)), batch)
        return minimised(returned)

    schedule: Any
    if held[0].schedule in _SCHEDULES:
        schedule = _SCHEDULES[held[0].schedule](stages[0], num, loss_fn=loss, scale_grads=False)
    else:
        schedule = _PipelineScheduleRuntime(stages, num, loss_fn=loss, scale_grads=False)  # type: ignore[no-untyped-call]
        schedule._prepare_schedule_with_comms(_order(held[0].schedule, place.group.size(), num))
    schedule._warmup_p2p = _shapes_are_known
    for stage in stages:
        stage.has_backward = True
    # Not the schedule's ``step``: it splits one batch of plain tensors, and our batches may be any tree of tensors.
    try:
        with _computing(model, precision, entered):
            schedule._step_microbatches(inputs, target_mbs=targets, return_outputs=False)
    except RuntimeError as error:
        if error.__cause__ is not None and "failed to run" in str(error).lower():  # torch wraps errors of the model
            raise error.__cause__ from None
        raise


@lru_cache(maxsize=16)
def _order(name: str, num_ranks: int, num_micro_batches: int) -> dict[int, list[_Action | None]]:
    """The passes of each rank, as torch's runtime takes them."""
    orders = schedule_of(name, num_ranks, num_micro_batches).orders
    return {
        rank: [_Action(action.stage, _PASSES[action.kind], action.micro_batch) for action in order]
        for rank, order in enumerate(orders)
    }


class _Part(nn.Module):
    """One of several stages that a rank has, as a module."""

    def __init__(self, model: Chain, stage: Stage) -> None:
        super().__init__()
        self.__dict__ |= {"_whole": model, "_stage": stage}  # the model is not a submodule, as this has a part of it

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """The parameters of the stage."""
        model: Chain = self.__dict__["_whole"]
        with only(model, self.__dict__["_stage"]):
            foreign = (() if model.is_first else model.enters) + (() if model.is_last else model.leaves)
            parameters = [
                (name, parameter)
                for name, parameter in model.named_parameters()
                if name.partition(".")[0] not in foreign
            ]
        return iter(parameter for _, parameter in parameters)

    def forward(self, *inputs: Tensor) -> Tensor:
        """The output of the stage."""
        with only(self.__dict__["_whole"], self.__dict__["_stage"]):
            output: Tensor = self.__dict__["_whole"](*inputs)
        return output


@contextmanager
def _computing(model: Chain, precision: Context, entered: _Entered | None = None) -> Iterator[None]:
    """Have the stage compute in the context ``precision``, and give other stages fp32, while this context lasts.

    The first one gets the tensors of ``entered``, if there is such.
    """
    forward = model.forward

    def call(*inputs: Any, **options: Any) -> Tensor:
        if entered is not None and model.is_first:
            inputs, options = entered.arguments(inputs)
        with precision():
            output: Tensor = forward(*inputs, **options)
        if model.is_last:
            return output
        if output.is_complex():
            raise WorkloadError(
                "stages of a pipeline send real numbers, and a block returns complex ones: return them as pairs of "
                "real ones (torch.view_as_real), or use plans with pp=1"
            )
        return output.float()

    model.forward = call  # type: ignore[method-assign]
    try:
        yield
    finally:
        model.forward = forward  # type: ignore[method-assign]


def evaluate_pipeline(workload: Workload, model: Chain, batch: Batch, precision: Context = nullcontext) -> Any:
    """The result of the workload's ``evaluate`` on the last stage; an empty dictionary on others.

    It must call the model exactly once.
    """
    assert model.place is not None, "the model is not a pipeline stage"
    group, held = model.place.group, model.place.stages
    ranks = [rank for (rank,) in holders_of(held[0].schedule, group.size())]
    output: Tensor | None = None
    for stage in held:
        options: dict[str, Any] = {}
        if stage.index == 0:
            inputs, options = _inputs_of(workload.evaluate, batch)
        elif output is not None and ranks[stage.index - 1] == ranks[stage.index]:
            inputs = (output,)
        else:
            received = torch.empty(model.hidden_shape(_num_samples(batch)), device=next(model.parameters()).device)
            dist.recv(received, group=group, group_src=ranks[stage.index - 1])
            inputs = (received,)
            del received
        with _computing(model, precision), only(model, stage):
            output = model(*inputs, **options)
        del inputs, options
        if stage.index == stage.count - 1:
            with precision():
                return workload.evaluate(cast(nn.Module, _Given(workload.evaluate, output)), batch)
        if ranks[stage.index + 1] != ranks[stage.index]:
            dist.send(output, group=group, group_dst=ranks[stage.index + 1])
            output = None
    return {}


def _shapes_are_known(stages: Sequence[PipelineStage], has_backward: bool, p2p_done: bool) -> None:
    """Replaces torch's vote of all stages on whether to infer shapes: here every stage knows its shapes."""
    for stage in stages:
        stage._inference_mode = InferenceMode.STATIC


class _Called(Exception):
    """Raised by the stand-in for the model, to carry the inputs that it was called with."""

    def __init__(self, arguments: Arguments) -> None:
        super().__init__()
        self.arguments = arguments


def _inputs_of(call: Callable[[nn.Module, Batch], Any], batch: Batch) -> Arguments:
    """The arguments with which ``call`` calls the model. Raises ``ValueError`` if it does not call the model."""

    def model(*inputs: Any, **options: Any) -> NoReturn:
        raise _Called((inputs, options))

    try:
        call(cast(nn.Module, model), batch)
    except _Called as called:
        return called.arguments
    raise ValueError(
        f"{call.__qualname__} does not call the model, so a pipeline cannot run it: call the model once, or use plans "
        "without a pipeline"
    )


class _Entered:
    """Arguments of the model for each micro-batch; its first stage gets their tensors alone, as torch passes no others.

    Raises ``WorkloadError`` for what differs between micro-batches and is no tensor.
    """

    def __init__(self, arguments: Sequence[Arguments]) -> None:
        self.tensors: list[tuple[Tensor, ...]] = []
        forms = []
        for micro_batch in arguments:
            leaves, form = tree_flatten(micro_batch)
            self.tensors.append(tuple(leaf for leaf in leaves if isinstance(leaf, Tensor)))
            forms.append((form, [_PLACE if isinstance(leaf, Tensor) else leaf for leaf in leaves]))
        self._form, self._leaves = forms[0]
        if any(form != forms[0] for form in forms):
            raise WorkloadError(
                "the first stage of a pipeline gets tensors, and the loss calls the model with something else that "
                "differs between micro-batches: make a tensor of it, or use plans without a pipeline (pp=1)"
            )

    def arguments(self, tensors: Iterable[Tensor]) -> Arguments:
        """The arguments with these tensors."""
        left = iter(tensors)
        leaves = (next(left) if leaf is _PLACE else leaf for leaf in self._leaves)
        arguments: Arguments = tree_unflatten(leaves, self._form)
        return arguments


_PLACE = object()
"""Stands for a tensor."""


class _Given:
    """A stand-in for the model, which returns the output of its last stage when it is called, once."""

    def __init__(self, call: Callable[..., Any], output: Any) -> None:
        self._call, self._output, self._is_called = call, output, False

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        if self._is_called:
            raise WorkloadError(
                f"{self._call.__qualname__} calls the model more than once, and a pipeline runs it once: use plans "
                "without a pipeline (pp=1)"
            )
        self._is_called = True
        return self._output


def _num_samples(batch: Batch) -> int:
    return len(tree_leaves(batch)[0])
