"""The recipe of a trace: functions of the code of ranks, which the tracer is given because it imports no workloads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from estimators.model import INDIVISIBLE, Divisions, Layout
from estimators.tracing.device import Device, device_for
from estimators.tracing.recorder import Batch
from estimators.traits import NO_TRAITS, Traits

Evaluate = Callable[[nn.Module, Iterable[Batch], int], Callable[[], object]]


@dataclass(frozen=True, slots=True)
class Recipe:
    """The training of one candidate, as callables."""

    build_model: Callable[[], nn.Module]
    make_batch: Callable[[int], Batch]
    """Returns real tensors with this number of samples: the largest ones, if samples differ in size."""
    blocks: Callable[[nn.Module], Sequence[nn.Module]]
    apply_plan: Callable[[nn.Module, Sequence[nn.Module], Layout, DeviceMesh | None], nn.Module]
    optimizer: Callable[[nn.Module, Layout, DeviceMesh | None], Optimizer]
    begin_step: Callable[[int, Optimizer], None]
    """Takes the number of the step, from 0."""
    train_step: Callable[[nn.Module, Optimizer, Iterable[Batch], int], object]
    """Runs the forward and backward passes of all micro-batches that it is given, and then calls ``step`` and
    ``zero_grad`` of the optimizer."""
    unfreezes: str = ""
    """The assumption that all parameters of the optimizer train, if later steps may unfreeze some; empty if not."""
    make_evaluation: Callable[[], Evaluate] | None = None
    """Returns a function that evaluates the model on all micro-batches that it is given, each with this number of
    samples, and returns what then shows what the model has learned. Whatever one such function keeps, others do not
    know. None: there is no evaluation."""
    is_of_plan: Callable[[Exception], bool] = lambda error: False
    """Whether an error in an evaluation says that the plan cannot run it; any other one may be due to values that a
    trace does not know."""
    make_evaluation_batch: Callable[[int], Batch] = lambda size: None
    """Makes a batch for evaluations, as ``make_batch`` does for steps."""
    kept_of: Callable[[nn.Module], Mapping[Tensor, Sequence[Tensor]]] = lambda model: {}
    """Returns what is kept for each parameter between steps besides the states of the optimizer, from the first update
    on."""
    most_parts: Callable[[nn.Module], int] = lambda block: 1
    """Returns the number of parts that the layers of a block can be divided into."""
    divisible: Callable[[nn.Module], Collection[Tensor]] = lambda model: ()
    """Returns the parameters of layers that data-parallel ranks may divide."""
    divisions: Callable[[nn.Module, Sequence[nn.Module]], Divisions] = lambda model, blocks: INDIVISIBLE
    """Returns how the model with its blocks can be divided."""
    rank_part: Callable[[nn.Module, Batch, Layout], Batch] = lambda model, batch, layout: batch
    """Returns the part of a batch that a rank has."""
    device: Device = field(default_factory=lambda: device_for(on_cuda=False))
    """The device that it trains on."""
    num_copied: Callable[[nn.Module], int] = lambda model: 0
    """Returns how many tensors a step copies because forward passes change them. A pass that finds another number takes
    other memory than those after it."""
    is_uneven: Callable[[], bool] = lambda: False
    """Returns whether the samples differ in size, so that most steps need less memory than the traced one."""
    traits: Callable[[nn.Module], Traits] = lambda model: NO_TRAITS
    """Returns the traits of the code that have been noted so far, while the model was made and trained."""
    sent_bytes: tuple[int, int] = (4, 4)
    """Bytes of a number in a parameter that FSDP gathers, and in a gradient that it adds up."""
