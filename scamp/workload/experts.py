"""A layer of experts: each token goes through the few that a router has chosen for it.

Whichever ranks have its tokens, a micro-batch is one group: an expert takes tokens of all data-parallel ranks, up to
its capacity, those with the largest weights first (Riquelme et al., "Scaling Vision with Sparse Mixture of Experts",
NeurIPS 2021). So it does not matter which rank has which sample. Evaluation drops no tokens.

Ranks tell each other which experts their tokens chose. With plans that divide experts they also send the tokens to the
ranks that have these experts, and get back what these compute (Lepikhin et al., "GShard", ICLR 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.func import functional_call
from torch.nn import functional


class TokenRanks(Protocol):
    """The ranks that have the tokens of a micro-batch. ``index`` is the place of this one among them."""

    @property
    def index(self) -> int: ...

    def gather(self, values: Tensor, fill: int) -> Tensor:
        """The ``values`` of all ranks, shape [ranks, most values]; those of ranks that have fewer end with ``fill``."""

    def total(self, counts: Tensor) -> Tensor:
        """The sum of the ``counts`` of all ranks."""

    def assumed(self, num: int) -> int:
        """The number of values of all ranks, which a trace assumes, where this one has ``num``."""


class _OneRank:
    index = 0

    def gather(self, values: Tensor, fill: int) -> Tensor:
        return values[None]

    def total(self, counts: Tensor) -> Tensor:
        return counts

    def assumed(self, num: int) -> int:
        return num


ONE_RANK: TokenRanks = _OneRank()


@dataclass(frozen=True, slots=True, eq=False)
class Choices:
    """The choices of the tokens of all ranks, shape [ranks, tokens of a rank times choices of a token].

    An ``expert`` is one more than there are where a rank has fewer tokens than others. ``position`` is the place of the
    token in the order in which the expert takes tokens. In training it takes those before ``limit``.
    """

    expert: Tensor
    position: Tensor
    limit: int


class Experts(nn.Module):
    """``num`` experts, each a new module that ``make`` returns, which takes tokens of shape [n, features].

    Parameters of all experts are in ``stacked``, an expert whose parameters have one more dimension, the first, of size
    ``num``. In training an expert takes at most ``capacity`` · choices / ``num`` of the choices of all tokens of a
    micro-batch; it drops the rest, and adds nothing to these tokens. With None it takes all, and ranks cannot divide
    the experts. Raises ``ValueError`` for experts with buffers, as those of batch norms.
    """

    def __init__(self, make: Callable[[], nn.Module], num: int, capacity: float | None = None) -> None:
        super().__init__()
        if num < 1 or (capacity is not None and capacity <= 0):
            raise ValueError(f"num and capacity must be positive, got {num} and {capacity}")
        experts = [make() for _ in range(num)]
        if len(set(map(id, experts))) < num:
            raise ValueError("make is called for each expert, and must return a new module each time")
        self.stacked, self.num, self.capacity = experts[0], num, capacity
        if any(True for _ in self.stacked.buffers()):
            raise ValueError(f"experts have no buffers, but {type(self.stacked).__name__} has some")
        for path, parameter in list(self.stacked.named_parameters()):
            owner, _, name = path.rpartition(".")
            values = torch.stack([expert.get_parameter(path).detach() for expert in experts])
            setattr(self.stacked.get_submodule(owner), name, nn.Parameter(values, parameter.requires_grad))
        self.token_ranks = ONE_RANK
        self.send: Callable[[Tensor, int, Choices], Tensor] | None = None
        """Computes tokens where each rank has only some of the experts; set by plans."""

    def forward(self, x: Tensor, choices: Tensor, weights: Tensor) -> Tensor:
        """The sum of what the chosen experts make of each token, times the weights of the choices.

        ``x`` has shape […, features], ``choices`` (int64, numbers of experts) and ``weights`` […, k], where each token
        has chosen k experts. Raises ``ValueError`` for others.
        """
        if choices.dtype != torch.int64 or choices.shape != weights.shape or choices.shape[:-1] != x.shape[:-1]:
            raise ValueError(
                "choices (int64) and weights must have shape […, k], also for k = 1, and x […, features], got x "
                f"{list(x.shape)}, choices {list(choices.shape)} of {choices.dtype}, weights {list(weights.shape)}"
            )
        tokens, num_choices = x.reshape(-1, x.shape[-1]), choices.shape[-1]
        chosen, weight = choices.reshape(-1), weights.reshape(-1)
        limits = self.training and self.capacity is not None
        if limits or self.send is not None:
            every = self.ordered(chosen, weight, num_choices)
        if limits:
            weight = weight * (every.position[self.token_ranks.index, : len(chosen)] < every.limit)
        if self.send is None:
            outputs = self._compute_own(tokens, chosen, num_choices)
        else:
            outputs = self.send(tokens, num_choices, every)
        weighted: Tensor = (outputs * weight[:, None]).unflatten(0, (len(tokens), num_choices))  # type: ignore[no-untyped-call]
        sums = weighted.sum(1)
        return sums.reshape(*x.shape[:-1], sums.shape[-1])

    def balance_loss(self, probabilities: Tensor, choices: Tensor) -> Tensor:
        """1 where all experts are chosen equally often, and more otherwise.

        It is num · Σ_e (share of the choices that e has) · (mean probability of e), the loss of Fedus et al., "Switch
        Transformers", JMLR 2022, equations 4 to 6. The shares are those of the micro-batch on all ranks, so the mean of
        the ranks' losses is that of one process. ``probabilities``, which add up to 1, have shape […, num], ``choices``
        […, k]. Raises ``ValueError`` for others.
        """
        if probabilities.shape[-1] != self.num or probabilities.shape[:-1] != choices.shape[:-1]:
            raise ValueError(
                f"probabilities must have shape […, {self.num}] beside choices of shape […, k], got "
                f"{list(probabilities.shape)} and {list(choices.shape)}"
            )
        counts = self.token_ranks.total(self.counts(choices.reshape(-1)))
        mean = probabilities.reshape(-1, self.num).mean(0)
        return self.num * (counts / counts.sum() * mean).sum()

    def counts(self, chosen: Tensor) -> Tensor:
        """How often each expert was chosen (int64, shape [num])."""
        zeros = torch.zeros(self.num + 1, dtype=torch.long, device=chosen.device)
        return zeros.index_add(0, chosen, torch.ones_like(chosen))[: self.num]

    def ordered(self, chosen: Tensor, weight: Tensor, num_choices: int) -> Choices:
        """The choices of all ranks, in the order in which experts take them: the largest weights first."""
        expert = self.token_ranks.gather(chosen, self.num)
        flat, weights = expert.reshape(-1), self.token_ranks.gather(weight.detach(), 0).reshape(-1)
        order = weights.argsort(descending=True, stable=True)
        order = order[flat[order].argsort(stable=True)]
        counts = self.counts(flat)
        starts = functional.pad(counts.cumsum(0), (1, 0))
        places = torch.arange(len(flat), device=flat.device) - starts[flat[order]]
        position = torch.empty_like(flat).scatter(0, order, places)
        is_traced = isinstance(flat, FakeTensor)
        num = (self.token_ranks.assumed(len(chosen)) if is_traced else int(counts.sum())) // num_choices
        limit = num if self.capacity is None else min(num, ceil(self.capacity * num * num_choices / self.num))
        return Choices(expert, position.view_as(expert), limit)

    def compute(self, tokens: Tensor, sizes: Sequence[int]) -> Tensor:
        """Run the experts that this rank has on ``tokens``, shape [n, features]: the first of them on the first
        ``sizes[0]`` tokens, the second on the next ``sizes[1]``, and so on."""
        stacked = {name: _local(parameter).unbind() for name, parameter in self.stacked.named_parameters()}
        experts = [{name: of[number] for name, of in stacked.items()} for number in range(len(sizes))]
        parts = torch.split(tokens, list(sizes))
        return torch.cat(
            [functional_call(self.stacked, expert, part) for expert, part in zip(experts, parts, strict=True)]
        )

    def _compute_own(self, tokens: Tensor, chosen: Tensor, num_choices: int) -> Tensor:
        """Outputs of each choice of this rank's tokens."""
        order = chosen.argsort(stable=True)
        sizes = sizes_of(self.counts(chosen), len(order))
        outputs = self.compute(tokens[order // num_choices], sizes)
        return outputs[order.argsort()]


def sizes_of(counts: Tensor, total: int) -> list[int]:
    """The counts as a list, to whose last one what is missing to ``total`` is added; equal ones in a trace."""
    num = len(counts)
    sizes = [total // num] * num if isinstance(counts, FakeTensor) else counts.tolist()
    sizes[-1] += total - sum(sizes)
    return sizes


def _local(parameter: Any) -> Tensor:
    """The part of a parameter that this rank has."""
    local: Tensor = parameter.to_local() if hasattr(parameter, "to_local") else parameter  # of a DTensor
    return local
