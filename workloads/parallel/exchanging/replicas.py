"""Whole replicas average their gradients in buckets, each as soon as the last backward pass of a step has filled it.

The gradients of a block are a bucket, those of the rest of the model are the last one; a small model has a single one.
All ranks reduce the buckets in the same order. A gradient that a rank lacks is zero in its bucket; parameters that no
rank has used keep no gradient, so the optimizer skips them as in a single process. Gradients that appear when their
bucket is gone, or that no bucket expects, are reduced at the end of the step.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

from workloads.parallel.exchanging.gloo import released

SMALL_BYTES = 2**20
"""Up to this size all gradients of a model travel together: a collective costs more than their bytes."""

_NAME = "_replica_gradients"

Agree = Callable[[Sequence[bool]], Sequence[bool]]
"""Returns for each bit whether any rank has set it; all ranks call it with equally many."""


def average_gradients(model: nn.Module, blocks: Sequence[nn.Module], group: dist.ProcessGroup) -> None:
    """Have the replicas in ``group`` average the gradients of ``model``; ``blocks`` share no parameters with others.

    Each step then calls ``begin_last_pass`` and ``end_passes``. Parameters may still be replaced before the first one.
    """
    model.__dict__[_NAME] = ReplicaGradients(model, blocks, group)


def replica_gradients(model: nn.Module) -> ReplicaGradients | None:
    """The averages of the gradients of ``model``; None if it is no whole replica that averages them."""
    return model.__dict__.get(_NAME)


def begin_last_pass(model: nn.Module) -> None:
    """Say that the backward pass of the last micro-batch of a step comes next: gradients are complete after it."""
    if gradients := replica_gradients(model):
        gradients.begin()


def end_passes(model: nn.Module) -> None:
    """Wait until all gradients of a step are averaged."""
    if gradients := replica_gradients(model):
        gradients.finish()


@dataclass(slots=True, eq=False)
class _Bucket:
    """Gradients that travel together. ``missing`` are the ids of parameters that have none yet in this step.

    Ids, because sets and dictionaries of tensors call a function in Python for each of them.
    """

    parameters: list[Tensor]
    missing: set[int] = field(default_factory=set)
    flat: Tensor | None = None
    work: dist.Work | None = None


class ReplicaGradients:
    """The gradients of a whole replica, which are averaged over ``group``.

    ``agree`` asks the other ranks; without it this rank decides alone, as in a trace. ``phase`` is that of the step:
    each phase expects gradients of its own.
    """

    def __init__(self, model: nn.Module, blocks: Sequence[nn.Module], group: dist.ProcessGroup) -> None:
        self.agree: Agree | None = None
        self.phase = ""
        self._model, self._blocks, self._group = model, blocks, group
        self._parameters: list[Tensor] = []
        self._buckets: dict[str, list[_Bucket]] = {}  # by phase
        self._late: dict[str, set[Tensor]] = {}  # parameters that have once been late, by phase
        self._hooked: set[Tensor] = set()
        self._places: dict[int, _Bucket] = {}  # of parameters, by their ids, in this step
        self._num_started: int | None = None  # None: no last backward pass is running
        self._holding = ExitStack()

    def begin(self) -> None:
        """Reduce each bucket from now on when its gradients are complete."""
        if self.phase not in self._buckets:
            self._parameters = list(self._model.parameters())
            self._expect({parameter for parameter in self._parameters if parameter.requires_grad})
        buckets = self._buckets[self.phase]
        for bucket in buckets:
            bucket.missing = set(map(id, bucket.parameters))
        self._places = {id(parameter): bucket for bucket in buckets[:-1] for parameter in bucket.parameters}
        self._num_started, self._holding = 0, ExitStack()

    @torch.no_grad()
    def finish(self) -> None:
        """Reduce what is left, and give each parameter the mean of its gradients over all ranks."""
        if self._num_started is None:
            return  # an evaluation
        buckets, left = self._buckets[self.phase], self._buckets[self.phase][self._num_started :]
        self._num_started = None
        awaited = {id(parameter) for bucket in left for parameter in bucket.parameters}
        with_gradient = {parameter: parameter.grad for parameter in self._parameters if parameter.grad is not None}
        late = {parameter: gradient for parameter, gradient in with_gradient.items() if id(parameter) not in awaited}
        is_surprised = bool(late) or len(with_gradient) < len(awaited)
        for parameter in late:
            parameter.grad = None
        del with_gradient
        self._start(left[:-1])
        tells = self.agree is not None and bool(left) and left[-1].parameters[0].device.type == "cpu"
        self._start(left[-1:], float(is_surprised) if tells else None)
        self._wait(buckets)
        is_any_surprised = _tells(left[-1]) if tells else any(self._agreed([is_surprised]))
        self._give(buckets)
        if is_any_surprised:
            self._correct(buckets, late)

    def _correct(self, buckets: Sequence[_Bucket], late: dict[Tensor, Tensor]) -> None:
        """Drop gradients that no rank has, add those that were late, and expect other ones from now on."""
        expected = [parameter for bucket in buckets for parameter in bucket.parameters]
        own_bits = [id(parameter) not in bucket.missing for bucket in buckets for parameter in bucket.parameters]
        any_late, *used = self._agreed([bool(late), *own_bits])
        unused = {parameter for parameter, is_used in zip(expected, used, strict=True) if not is_used}
        for parameter in unused:
            parameter.grad = None
        known_late = self._late.setdefault(self.phase, set())
        if any_late:
            known_late |= self._reduce_late(late)
        self._expect({*expected} - unused | known_late)

    def _agreed(self, bits: Sequence[bool]) -> Sequence[bool]:
        return bits if self.agree is None else self.agree(bits)

    def _expect(self, trained: set[Tensor]) -> None:
        """Make the buckets of the phase, for gradients of these parameters."""
        self._buckets[self.phase] = self._bucketed(trained)
        reference = weakref.ref(self)  # Python finds no cycles through hooks of tensors: the model would never be freed

        def see(parameter: Tensor) -> None:
            if (gradients := reference()) is not None:
                gradients._see(parameter)

        for parameter in trained - self._hooked:
            self._hooked.add(parameter)
            parameter.register_post_accumulate_grad_hook(see)  # type: ignore[no-untyped-call]

    def _bucketed(self, trained: Set[Tensor]) -> list[_Bucket]:
        left = dict.fromkeys(parameter for parameter in self._parameters if parameter in trained)
        buckets: list[_Bucket] = []
        is_small = sum(parameter.nbytes for parameter in left) <= SMALL_BYTES
        for part in (self._model,) if is_small else (*reversed(self._blocks), self._model):
            by_type: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
            for parameter in part.parameters():
                if parameter in left:
                    del left[parameter]
                    by_type.setdefault((parameter.dtype, parameter.device), []).append(parameter)
            buckets += map(_Bucket, by_type.values())
        return buckets

    def _see(self, parameter: Tensor) -> None:
        """Called when a backward pass has added to the gradient of a parameter."""
        if self._num_started is None or (bucket := self._places.get(id(parameter))) is None:
            return
        bucket.missing.discard(id(parameter))
        if bucket.missing:
            return
        buckets = self._buckets[self.phase]
        while self._num_started < len(buckets) - 1 and not buckets[self._num_started].missing:
            self._start([buckets[self._num_started]])
            self._num_started += 1

    @torch.no_grad()
    def _start(self, buckets: Sequence[_Bucket], last: float | None = None) -> None:
        """Send these buckets, each with the number ``last`` at its end if there is one."""
        for bucket in buckets:
            bucket.missing = {id(parameter) for parameter in bucket.parameters if parameter.grad is None}
            bucket.flat = _joined(bucket.parameters, last).div_(self._group.size())
            self._holding.enter_context(released(bucket.flat))
            bucket.work = dist.all_reduce(bucket.flat, group=self._group, async_op=True)

    def _wait(self, buckets: Sequence[_Bucket]) -> None:
        for bucket in buckets:
            if bucket.work is not None:
                bucket.work.wait()
            bucket.work = None
        self._holding.close()

    def _give(self, buckets: Sequence[_Bucket]) -> None:
        """Give the parameters their gradients, which are views of the buckets."""
        for bucket in buckets:
            assert bucket.flat is not None
            sizes = [parameter.numel() for parameter in bucket.parameters]
            parts = torch.split(bucket.flat[: sum(sizes)], sizes)
            for parameter, part in zip(bucket.parameters, parts, strict=True):
                parameter.grad = part.view_as(parameter)
            bucket.flat = None

    def _reduce_late(self, late: dict[Tensor, Tensor]) -> set[Tensor]:
        """Add the mean of the late gradients of all ranks; returns the parameters that any rank has one for."""
        agreed = self._agreed([parameter in late for parameter in self._parameters])
        chosen = {parameter for parameter, is_late in zip(self._parameters, agreed, strict=True) if is_late}
        earlier = {parameter: parameter.grad for parameter in chosen}
        for parameter in chosen:
            parameter.grad = late.get(parameter)
        buckets = self._bucketed(chosen)
        self._start(buckets)
        self._wait(buckets)
        self._give(buckets)
        for parameter, gradient in earlier.items():
            if gradient is not None and parameter.grad is not None:
                parameter.grad.add_(gradient)
        return chosen


def _tells(bucket: _Bucket) -> bool:
    """Whether any rank has sent a number other than 0 at the end of the bucket; on a GPU the host would wait for it."""
    assert bucket.flat is not None
    return bool(bucket.flat[-1] != 0)


def _joined(parameters: Sequence[Tensor], last: float | None) -> Tensor:
    """The gradients of these parameters one after another, zero where there is none; the parameters lose theirs."""
    gradients = [torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    end = [gradients[0].new_full((1,), last)] if last is not None else []
    return torch.cat([*(gradient.reshape(-1) for gradient in gradients), *end])
