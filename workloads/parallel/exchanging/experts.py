"""Experts of which every data-parallel rank has some, while the rest of the model is whole (expert parallelism).

An all-to-all sends each token to the ranks that have the experts that it has chosen, and another one sends back what
these make of it; gradients go the same ways back. A rank takes as many tokens as the capacities of its experts, so its
memory does not depend on what tokens choose: where fewer come, it computes zeros in their place. Without gradients no
token is dropped: more go in further rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from estimators.axes import MESH, SHARES
from estimators.tracing.fake_shares import rows_of_all
from scamp.workload.experts import Choices, Experts, sizes_of
from workloads.parallel.exchanging.exchange import exchanged_rows, of_all_ranks
from workloads.parallel.exchanging.gloo import reduce
from workloads.parallel.forward_state.replaced import ReplacedForward


def experts_of(model: nn.Module) -> list[Experts]:
    """The layers of experts in ``model``."""
    return [module for module in model.modules() if isinstance(module, Experts)]


def join_ranks(model: nn.Module, mesh: DeviceMesh | None) -> None:
    """Let experts know the ranks that have other tokens of a micro-batch."""
    if mesh is None:
        return
    names = [name for axis in SHARES if (name := MESH[axis].name) in (mesh.mesh_dim_names or ())]
    for experts in experts_of(model) if names else ():
        experts.token_ranks = DataRanks(tuple(mesh.get_group(name) for name in names))


def divide_experts(experts: Experts, mesh: DeviceMesh) -> set[nn.Parameter]:
    """Divide ``experts`` over the ranks of the one-dimensional ``mesh``, in place. Returns their parameters."""
    divided = set[nn.Parameter]()
    for path, parameter in list(experts.stacked.named_parameters()):
        owner, _, name = path.rpartition(".")
        part = distribute_tensor(parameter.detach(), mesh, [Shard(0)], src_data_rank=None)
        setattr(experts.stacked.get_submodule(owner), name, nn.Parameter(part, requires_grad=parameter.requires_grad))
        divided.add(experts.stacked.get_parameter(path))
    experts.send = ReplacedForward(_Sending(experts, mesh.get_group()), experts.forward, "divided=false")
    return divided


@dataclass(frozen=True, slots=True)
class DataRanks:
    """The ranks that train on different samples, as ``TokenRanks``; ``groups`` are along dimensions of the mesh, the
    slowest first."""

    groups: Sequence[dist.ProcessGroup]

    @property
    def index(self) -> int:
        """Place of this rank."""
        place = 0
        for group in self.groups:
            place = place * group.size() + group.rank()
        return place

    def gather(self, values: Tensor, fill: int) -> Tensor:
        """The ``values`` of all ranks, shape [ranks, most values]; those of ranks that have fewer end with ``fill``."""
        return of_all_ranks(values, self.groups, fill)

    def total(self, counts: Tensor) -> Tensor:
        """The sum of the ``counts`` of all ranks."""
        for group in self.groups:
            reduce(counts, group)
        return counts

    def assumed(self, num: int) -> int:
        """The number of values of all ranks, which a trace assumes, where this one has ``num``."""
        return rows_of_all(num, prod(group.size() for group in self.groups))

    def __deepcopy__(self, memo: dict[int, object]) -> DataRanks:
        return self


@dataclass(frozen=True, slots=True, eq=False)
class _Sending:
    """Computes the tokens of a rank on the ranks that have the experts."""

    experts: Experts
    group: dist.ProcessGroup

    def __call__(self, tokens: Tensor, num_choices: int, choices: Choices) -> Tensor:
        """Outputs of each choice of this rank's ``tokens``; in training zeros of those that are dropped."""
        outputs = self._round(tokens, num_choices, choices, 0)
        if not self.experts.training and not isinstance(tokens, FakeTensor):
            last = choices.position.where(choices.expert < self.experts.num, 0).max()
            for number in range(1, int(last) // choices.limit + 1):
                outputs = outputs + self._round(tokens, num_choices, choices, number)
        return outputs

    def _round(self, tokens: Tensor, num_choices: int, choices: Choices, number: int) -> Tensor:
        """Outputs of the choices for which their experts have room in this round, zeros of others."""
        num, num_ranks, here, group = self.experts.num, self.group.size(), self.group.rank(), self.group
        num_own, size = num // num_ranks, min(num // num_ranks * choices.limit, choices.expert.numel())
        none = torch.full_like(choices.expert, num)
        by_rank, order = choices.expert.where(choices.position // choices.limit == number, none).sort(stable=True)
        counts = by_rank.new_zeros(num_ranks, num + 1).scatter_add(1, by_rank, torch.ones_like(by_rank))[:, :num]
        between = counts.view(num_ranks, num_ranks, num_own).sum(2)  # by rank that sends, and that receives
        choice = order[here, : len(tokens) * num_choices]
        sent, received = _numbers(between[here], len(choice)), _numbers(between[:, here], size)
        incoming = exchanged_rows(tokens[choice // num_choices], sent, received, size, group, weight=num_ranks)

        every = by_rank.reshape(-1)
        is_here = every // num_own == here
        by_expert = every.where(is_here, num).argsort(stable=True)[:size]
        rows = (is_here.cumsum(0) - 1).where(is_here, size - 1)[by_expert]  # the last one is zero if there are fewer
        sizes = sizes_of(counts[:, here * num_own : (here + 1) * num_own].sum(0), size)
        computed = self.experts.compute(incoming[rows], sizes)
        places = torch.zeros_like(rows).scatter(0, rows, torch.arange(size, device=rows.device))
        # A loss is a mean over the samples of a rank, and that of a step a mean over ranks: gradients count for 1/n.
        returned = exchanged_rows(computed[places], received, sent, len(choice), group, weight=1 / num_ranks)
        return returned[choice.argsort()]


def _numbers(counts: Tensor, total: int) -> list[int]:
    """The counts as a list; in a trace, equal parts of ``total``."""
    return sizes_of(counts, total) if isinstance(counts, FakeTensor) else counts.tolist()
