"""How one candidate is trained, as callables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from estimators.model import INDIVISIBLE, Divisions, Layout
from estimators.tracing.recorder import Batch

Evaluate = Callable[[nn.Module, Iterable[Batch], int], object]


@dataclass(frozen=True, slots=True)
class Recipe:
    """The training of one candidate, as callables.

    ``make_batch`` returns real tensors with the given number of samples. ``begin_step`` takes the number of the step,
    from 0. ``train_step`` runs the forward and backward passes of all micro-batches that it is given, and then calls
    ``step`` and ``zero_grad`` of the optimizer that it is given. ``make_evaluation`` returns a function that evaluates
    the model on all micro-batches that it is given, each with this number of samples; whatever one such function keeps,
    others do not know. None: there is no evaluation. ``make_evaluation_batch`` is for it what ``make_batch`` is for
    steps. ``unfreezes`` is the assumption that all parameters of the optimizer train, if a later step may unfreeze some
    of them; empty if not. ``kept`` returns what is kept for each parameter between steps besides the states of the
    optimizer, from the first update on. ``most_parts`` returns the number of parts that the layers of a block can be
    divided into, ``tables`` the embedding tables that ranks may divide, and ``divisions`` how the model with its blocks
    can be divided. ``rank_part`` returns the part of a batch that a rank has. ``on_cuda`` asks for the behaviour on
    CUDA (see ``estimators.tracing.cuda``). ``num_copied`` returns how many tensors a step copies because forward passes
    change them; a pass that finds another one takes other memory than those after it. A step that ``has_phases`` takes
    its micro-batches several times, with an update after each; only the last one is that of the optimizer.
    ``sent_bytes`` are those of a parameter that FSDP gathers, and of a gradient that it adds up.
    """

    build_model: Callable[[], nn.Module]
    make_batch: Callable[[int], Batch]
    blocks: Callable[[nn.Module], Sequence[nn.Module]]
    apply_plan: Callable[[nn.Module, Sequence[nn.Module], Layout, DeviceMesh | None], nn.Module]
    optimizer: Callable[[nn.Module, Layout, DeviceMesh | None], Optimizer]
    begin_step: Callable[[int, Optimizer], None]
    train_step: Callable[[nn.Module, Optimizer, Iterable[Batch], int], object]
    unfreezes: str = ""
    make_evaluation: Callable[[], Evaluate] | None = None
    make_evaluation_batch: Callable[[int], Batch] = lambda size: None
    kept: Callable[[nn.Module], Mapping[Tensor, Sequence[Tensor]]] = lambda model: {}
    most_parts: Callable[[nn.Module], int] = lambda block: 1
    tables: Callable[[nn.Module], Collection[Tensor]] = lambda model: ()
    divisions: Callable[[nn.Module, Sequence[nn.Module]], Divisions] = lambda model, blocks: INDIVISIBLE
    rank_part: Callable[[nn.Module, Batch, Layout], Batch] = lambda model, batch, layout: batch
    on_cuda: bool = False
    num_copied: Callable[[nn.Module], int] = lambda model: 0
    has_phases: bool = False
    sent_bytes: tuple[int, int] = (4, 4)
