"""One rank of a training: everything that its loop and its observers share, and sums over its gang."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._pytree import tree_leaves

from workloads.parallel.apply import rank_part
from workloads.protocol import Batch, Workload
from workloads.training.attempt.job import TrainingJob
from workloads.training.attempt.reporter import Reporter
from workloads.training.data.feed import Feed
from workloads.training.memory.budget import EnforcedBudget
from workloads.training.packs.pack import Member
from workloads.training.step import to_device


@dataclass(slots=True)
class TrainingRank:
    """A rank with its model on its device. ``number`` is its rank; ``mesh`` is None without a gang.

    ``member`` is its place in a pack, if it shares its
    process. ``present_step`` counts the steps that are done, for ``Reporter.progressed``.
    """

    job: TrainingJob
    workload: Workload
    device: torch.device
    mesh: DeviceMesh | None
    number: int
    reporter: Reporter
    budget: EnforcedBudget
    model: nn.Module
    optimizer: torch.optim.Optimizer
    feed: Feed
    member: Member | None = None
    present_step: int = 0

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which reports for all."""
        return self.number == 0

    def on_device(self, batch: Batch) -> Batch:
        """This rank's part of a batch, on its device."""
        self.reporter.progressed(self.present_step)
        reads_part = self.workload.reads_slabs
        part = batch if reads_part else rank_part(self.model, batch, self.job.plan, self.number)
        self.budget.meet(tuple(leaf.shape for leaf in tree_leaves(part) if isinstance(leaf, Tensor)))
        return to_device(part, self.device, copy=self.feed.is_shared)

    def all_on_device(self, batches: Iterable[Batch]) -> Iterable[Batch]:
        """This rank's parts of these batches, each put on its device when it is needed."""
        return map(self.on_device, batches)

    def sum(self, mine: Tensor) -> Tensor:
        """The sum over all ranks, in place."""
        if self.mesh is not None:
            dist.all_reduce(mine)
        return mine

    def any(self, mine: bool) -> bool:
        """Whether it is true on any rank."""
        return bool(self.sum(torch.tensor(float(mine))))

    def first(self, words: str) -> str:
        """The words of the first rank that has any."""
        if not self.any(bool(words)) or self.mesh is None:
            return words
        listed: list[str] = [""] * self.job.plan.world_size
        dist.all_gather_object(listed, words)
        return next(filter(None, listed))

    def highest(self, mine: int) -> int:
        """The highest number of all ranks."""
        if self.mesh is None:
            return mine
        highest = torch.tensor(mine)
        dist.all_reduce(highest, op=dist.ReduceOp.MAX)
        return int(highest)
