"""Lets the ranks of a gang disagree about which modules run, and about which parameters have gradients.

FSDP2 gathers a block's parameters when the block runs, and reduces those gradients that exist. If ranks run different
blocks (experts chosen by data, heads by task, layer drop), they would start different collectives: the gang would hang,
or die in native code. Here ranks agree on each collective before they start it. A rank that needs another one takes
part all the same: it gathers and throws away, or adds gradients of zero. A parameter that no rank has used keeps no
gradient, so the optimizer skips it as in a single process (see docs/decisions/0015-one-curve.md).

It replaces methods of torch's ``FSDPParamGroup``, and calls ``foreach_reduce``: both are private.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import ge
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather
from torch.distributed.fsdp._fully_shard._fsdp_collectives import foreach_reduce
from torch.distributed.fsdp._fully_shard._fsdp_common import DDPMeshInfo, TrainingState
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

from estimators.model import Layout
from workloads.parallel.exchanging.replicas import replica_gradients

_ATTRIBUTE = "_agreement_of_ranks"  # of the model, so that both are freed together


def agree(model: nn.Module, layout: Layout, mesh: DeviceMesh) -> None:
    """Have the ranks that train other samples than this one agree with it on the collectives for ``model``.

    Call it once FSDP2 has been applied, and its custom collectives have been set.
    """
    if layout.zero1:
        setattr(model, _ATTRIBUTE, _GradientAgreement(model, mesh.get_group("replicate")))
    elif gradients := replica_gradients(model):
        gradients.agree = _Bits(mesh.get_group("replicate")).any
    elif layout.fsdp_mesh:
        dims = [name for name in layout.fsdp_mesh if mesh[name].size() > 1]
        group = mesh.get_group(dims[0]) if len(dims) == 1 else mesh[tuple(dims)]._flatten("samples").get_group()
        setattr(model, _ATTRIBUTE, _Agreement(model, group, each_pass=layout.pp > 1))


def finish(model: nn.Module) -> None:
    """Take part in the collectives of others until all ranks have finished the passes of a step or an evaluation.

    After those of a step, a parameter has a gradient on all ranks or on none.
    """
    if agreement := getattr(model, _ATTRIBUTE, None):
        agreement.finish()


def begin_phase(model: nn.Module, name: str) -> None:
    """Say that a phase of a step begins, which has collectives of its own."""
    if isinstance(agreement := getattr(model, _ATTRIBUTE, None), _Agreement):
        agreement.phase = name
    if gradients := replica_gradients(model):
        gradients.phase = name


class _GradientAgreement:
    """Agreement of whole replicas, which reduce gradients after the passes: those that others have are zero here."""

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        self._model, self._group = model, group

    def finish(self) -> None:
        if not torch.is_grad_enabled():
            return  # an evaluation
        parameters = list(self._model.parameters())
        used = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.uint8)
        dist.all_reduce(used, op=dist.ReduceOp.MAX, group=self._group)
        for parameter, is_used in zip(parameters, used.tolist(), strict=True):
            if is_used and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)


class _Bits:
    """Bits that the ranks of a group agree on, in one buffer: gloo's threads would free others at any time."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group, self._buffer = group, torch.empty(0, dtype=torch.uint8)

    def any(self, bits: Sequence[bool]) -> list[bool]:
        """For each bit, whether any rank has set it."""
        if len(self._buffer) < len(bits):
            self._buffer = torch.empty(len(bits), dtype=torch.uint8)
        sent = self._buffer[: len(bits)].copy_(torch.tensor(bits, dtype=torch.uint8))
        dist.all_reduce(sent, op=dist.ReduceOp.MAX, group=self._group)
        return [bool(bit) for bit in sent.tolist()]


class _Agreed(NamedTuple):
    """A collective that the ranks agreed on, the gradients that any rank had for it, and those that this rank had.

    ``own_bits`` is None if this rank only took part.
    """

    number: int
    used: Sequence[bool]
    own_bits: Sequence[bool] | None


@dataclass(slots=True)
class _Habit:
    """The collectives of an earlier step, which all ranks expect of the next one; empty if they do not know any.

    ``num_surprises`` counts the steps that went otherwise. After each, more steps pass before a habit is formed again.
    """

    expected: list[_Agreed] = field(default_factory=list)
    num_surprises: int = 0
    num_waits: int = 0

    def after(self, seen: list[_Agreed], surprised: bool) -> None:
        """Learn from a step; ``seen`` are its collectives if nothing was expected of it."""
        if surprised:
            self.num_surprises += 1
            self.expected, self.num_waits = [], 2**self.num_surprises
        elif self.num_waits:
            self.num_waits -= 1
        elif not self.expected:
            self.expected = seen


class _Agreement:
    """Ranks propose numbered collectives, and all of them run the one with the lowest number.

    A step's collectives are numbered in the order in which a model that runs all its blocks starts them. So whoever is
    furthest behind goes first; any other order would be right too, but would run some collectives more often.

    Proposals take time. So ranks do in each step what they did in an earlier one, without any. A rank that needs
    something else takes part in all of that, proposes what is missing, and says at the end of the step that it did.
    """

    def __init__(self, model: nn.Module, group: dist.ProcessGroup, *, each_pass: bool) -> None:
        """``each_pass``: also wait for the others after each pass. In a pipeline, a rank that waits for another stage
        could not take part in what the others of its own stage do."""
        states = [module._get_fsdp_state() for module in model.modules() if isinstance(module, FSDPModule)]
        self._root, self._group = states[0], group
        self._param_groups: list[FSDPParamGroup] = [
            param_group for state in states for param_group in state._fsdp_param_groups
        ]
        num = len(self._param_groups)
        self._pass_ends, self._step_ends = 3 * num, 3 * num + 1
        self._num_bits = max(len(param_group.fsdp_params) for param_group in self._param_groups)
        # One buffer for ever: gloo's threads would free others at any time, and peaks would depend on the scheduler.
        self._buffer = torch.empty(2 + self._num_bits, dtype=torch.int32)
        for number, param_group in enumerate(self._param_groups):
            param_group._all_gather_comm = _AgreedAllGather(param_group._all_gather_comm, partial(self._gather, number))
            param_group.post_backward = partial(self._post_backward, number, param_group.post_backward)  # type: ignore[method-assign]
        self._used: set[tuple[int, int]] = set()  # groups and places of the parameters with gradients of this rank
        self._model, self._each_pass = model, each_pass
        self.phase = ""
        self._habits: defaultdict[tuple[bool, str], _Habit] = defaultdict(_Habit)  # by training and phase
        self._begin_step()
        if each_pass:
            model.register_forward_hook(self._end_forward)
            for state in states:
                ended = state._root_post_backward_final_callback
                state._root_post_backward_final_callback = partial(self._end_backward, ended)  # type: ignore[method-assign]

    def finish(self) -> None:
        habit = self._habit or self._habits[self._model.training, self.phase]
        surprised = any(self._reach(self._step_ends))
        if surprised:
            self._drop_unused()
        if not self._each_pass:  # in a pipeline, a rank that is surprised could not wait for the end of the step
            habit.after(self._seen, surprised)
        self._begin_step()

    def _begin_step(self) -> None:
        self._habit: _Habit | None = None
        self._place = 0  # in what is expected
        self._seen: list[_Agreed] = []
        self._surprised = False
        self._used.clear()

    def _drop_unused(self) -> None:
        """Drop the gradients that are zero because they were expected, but that no rank had in this step."""
        groups = [group.fsdp_params for group in self._param_groups]
        every = [(number, place) for number, group in enumerate(groups) for place in range(len(group))]
        used = torch.tensor([parameter in self._used for parameter in every], dtype=torch.uint8)
        dist.all_reduce(used, op=dist.ReduceOp.MAX, group=self._group)
        for (number, place), is_used in zip(every, used.tolist(), strict=True):
            if not is_used:
                groups[number][place].sharded_param.grad = None

    def _end_forward(self, *unused: Any) -> None:
        self._reach(self._pass_ends)

    def _end_backward(self, ended: Callable[[], None]) -> None:
        ended()
        self._reach(self._pass_ends)

    def _gather(self, number: int) -> None:
        forward = self._param_groups[number]._training_state == TrainingState.FORWARD
        self._reach(number if forward else self._backward_number(number))

    def _post_backward(self, number: int, post_backward: Callable[[], None], *unused: Any) -> None:
        """Reduce all gradients that any rank has: those that this rank lacks are zero."""
        group = self._param_groups[number]
        own_bits = [_has_gradient(parameter) for parameter in group.fsdp_params]
        if group.reduce_grads and any(own_bits):
            self._used |= {(number, place) for place, is_used in enumerate(own_bits) if is_used}
            used = self._reach(self._backward_number(number) + 1, own_bits)
            for parameter, is_used in zip(group.fsdp_params, used, strict=False):
                if is_used and not _has_gradient(parameter):
                    parameter.unsharded_param.grad = torch.zeros_like(parameter.unsharded_param)
        post_backward()

    def _backward_number(self, number: int) -> int:
        """Number of the collective that gathers a group's parameters for the backward pass; its reduction is next."""
        num = len(self._param_groups)
        return num + 2 * (num - 1 - number)

    def _reach(self, position: int, bits: Sequence[bool] = ()) -> Sequence[bool]:
        """Take part in the collectives of others until it is the turn of ``position``.

        Returns the bits that any rank has set for it.
        """
        if self._habit is None:
            self._habit = self._habits[self._model.training, self.phase]
        expected = self._habit.expected
        while self._place < len(expected):
            number, used, own_before = expected[self._place]
            self._place += 1
            is_wanted = number == position and all(map(ge, used, bits))
            self._surprised |= (bits if is_wanted else None) != own_before
            if is_wanted:
                return used
            self._take_part(number, used)
        while True:
            if position == self._step_ends:
                bits = [self._surprised]
            number, used = self._propose(position, bits)
            if number < self._step_ends:
                self._seen.append(_Agreed(number, used, bits if number == position else None))
                self._surprised |= bool(expected)
            if number == position:
                return used
            self._take_part(number, used)

    def _propose(self, position: int, bits: Sequence[bool]) -> tuple[int, list[bool]]:
        """The lowest number that any rank wants, and the bits that any rank has set for it."""
        ours = [-position, position, *bits, *[0] * (self._num_bits - len(bits))]
        lowest, highest, *others = self._largest(ours)
        lowest = -lowest
        if lowest < highest and self._is_reduction(lowest):  # others' bits may be of another collective
            others = self._largest(ours[2:] if position == lowest else [0] * self._num_bits)
        return lowest, [bool(bit) for bit in others]

    def _largest(self, values: list[int]) -> list[int]:
        buffer = self._buffer[: len(values)].copy_(torch.tensor(values, dtype=torch.int32))
        dist.all_reduce(buffer, op=dist.ReduceOp.MAX, group=self._group)
        numbers: list[int] = buffer.tolist()
        return numbers

    def _is_reduction(self, position: int) -> bool:
        num = len(self._param_groups)
        return num <= position < 3 * num and (position - num) % 2 == 1

    def _take_part(self, position: int, used: Sequence[bool]) -> None:
        num = len(self._param_groups)
        if position >= self._pass_ends:
            return
        self._root._lazy_init()
        group = self._param_groups[position if position < num else num - 1 - (position - num) // 2]
        with torch.no_grad():
            if self._is_reduction(position):
                chosen = [parameter for parameter, is_used in zip(group.fsdp_params, used, strict=False) if is_used]
                _add_zeros(group, chosen)
            else:
                _send_shards(group)


class _AgreedAllGather(AllGather):
    """An all-gather that waits for its turn."""

    def __init__(self, inner: AllGather, agreed: Callable[[], None]) -> None:
        self._agreed, self._inner = agreed, inner
        self.collective = inner  # without agreement

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self._inner.allocate(size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        self._agreed()
        return self._inner(output_tensor, input_tensor, group, async_op)


def _has_gradient(parameter: FSDPParam) -> bool:
    """Whether this rank has a gradient of the whole parameter, from this backward pass or kept from earlier ones."""
    if not hasattr(parameter, "_unsharded_param"):
        return False  # it was never gathered
    return parameter.unsharded_accumulated_grad is not None or parameter.unsharded_param.grad is not None


def _send_shards(param_group: FSDPParamGroup) -> None:
    """Take part in an all-gather whose result this rank does not need."""
    shards = [param._sharded_param_data.to(param.param_dtype or param.orig_dtype) for param in param_group.fsdp_params]
    if len({shard.dtype for shard in shards}) > 1:
        shards = [shard.view(torch.uint8) for shard in shards]  # as torch does
    own_shards = torch.cat(shards)
    group, comm = param_group._all_gather_process_group, param_group._all_gather_comm
    assert isinstance(comm, _AgreedAllGather)
    gathered = comm.allocate((own_shards.numel() * group.size(),), dtype=own_shards.dtype, device=own_shards.device)
    work = comm.collective(gathered, own_shards, group)
    if work is not None:
        work.wait()


def _add_zeros(param_group: FSDPParamGroup, parameters: list[FSDPParam]) -> None:
    """Take part in a reduction with gradients of zero; the parameters get the mean, as if this rank had used them."""
    zeros = [
        torch.zeros(
            parameter._orig_size, dtype=parameter.param_dtype or parameter.orig_dtype, device=param_group.device
        )
        for parameter in parameters
    ]
    _, _, _, reduced, _, _, param_group._partial_reduce_output = foreach_reduce(
        parameters,
        zeros,
        param_group._reduce_scatter_process_group,
        param_group.comm_ctx.reduce_scatter_stream,
        param_group._reduce_scatter_comm,
        param_group._orig_dtype,
        param_group._reduce_dtype,
        param_group.device,
        param_group.gradient_divide_factor,
        param_group._all_reduce_process_group if isinstance(param_group.mesh_info, DDPMeshInfo) else None,
        param_group.comm_ctx.all_reduce_stream,
        param_group.all_reduce_grads,
        param_group._partial_reduce_output,
        param_group._all_reduce_hook,
        param_group.force_sum_reduction_for_comms,
    )
    param_group.device_handle.current_stream().wait_event(reduced)
