"""Micro-batches from data sets: equal in a rank and in its workers, and a worker that dies says how."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from estimators.model import Plan
from workloads.protocol import Workload
from workloads.refusals import WrongResult
from workloads.training.data.feed import DataFault, DatasetFeed, feeding

REPORT_EVERY = 2


class Noisy(Workload):
    """Sample i is i and three random numbers, one of each global generator."""

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self.num_workers = params.get("workers", 0)

    def build_model(self) -> nn.Module:
        return nn.Linear(1, 1)

    def dataset(self, split: str) -> Any:
        return _Samples(20 if split == "train" else 5, self.params)

    def augment(self, sample: Tensor, generator: torch.Generator) -> Tensor:
        return torch.cat([sample, torch.rand(1, generator=generator)])

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return model(batch).mean()

    def evaluate(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {}


class _Samples:
    def __init__(self, num: int, params: Any) -> None:
        self.num, self.params = num, params

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, index: int) -> Tensor:
        if index == self.params.get("fails_at"):
            raise KeyError("label")
        if index == self.params.get("dies_at"):
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.tensor([index, torch.rand(()).item(), random.random(), np.random.rand()])


def batches(plan: Plan, steps: range = range(3), make: type[Workload] = Noisy, **params: Any) -> list[Tensor]:
    """All batches of all ranks: of each step and evaluation those of the ranks put together again."""
    ranks = []
    for rank in range(plan.world_size):
        with feeding(make(params), plan, rank, 7, steps, lambda done: done % REPORT_EVERY == 0) as feed:
            feed.open()
            of_rank: list[Tensor] = []
            for step in steps:
                of_rank.append(torch.cat(list(feed.step(step))))
                if (step + 1) % REPORT_EVERY == 0:
                    of_rank.append(torch.cat([batch[counted] for batch, counted in feed.evaluation()]))
            ranks.append(of_rank)
    return [torch.cat(parts) for parts in zip(*ranks, strict=True)]


def test_workers_plans_and_resumed_trainings_read_the_same_samples_with_the_same_random_numbers() -> None:
    expected_batches = batches(Plan(8))
    assert [len(batch) for batch in expected_batches] == [8, 8, 5, 8]
    for other in (batches(Plan(2, 4), workers=2), batches(Plan(2, 2, dp_shard=2), workers=1)):
        for batch, expected in zip(other, expected_batches, strict=True):
            by_sample = batch[batch[:, 0].argsort()] if len(batch) == 5 else batch  # ranks alternate in evaluations
            assert torch.equal(by_sample, expected)
    assert torch.equal(batches(Plan(8), range(2, 3), workers=1)[0], expected_batches[3])
    first, later = (
        expected_batches[0],
        torch.cat([expected_batches[1], expected_batches[3]]),
    )  # 20 samples: the last four are of the next epoch
    by_number = {int(row[0]): row for row in later[-4:]}
    both = [(row, by_number[int(row[0])]) for row in torch.cat([first, later[:-4]]) if int(row[0]) in by_number]
    assert both and not any(torch.equal(row, other) for row, other in both), "each epoch has other numbers"


class NoisyByIndex(Workload):
    """Held-out sample i is i and a random number."""

    num_train, num_eval = 8, 75

    def build_model(self) -> nn.Module:
        return nn.Linear(1, 1)

    def train_batch(self, indices: Tensor) -> Any:
        return {"index": indices, "noise": torch.zeros(len(indices))}

    def eval_batch(self, indices: Tensor) -> Any:
        return {"index": indices, "noise": torch.rand(len(indices)) if self.params.get("draws", True) else indices}

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return model(batch).mean()

    def evaluate(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {}


@pytest.mark.parametrize("plan", [Plan(8), Plan(2, 4), Plan(4, dp_shard=2), Plan(1, 2, dp_replicate=4)], ids=str)
def test_held_out_samples_that_are_drawn_by_index_are_the_same_under_every_plan(plan: Plan) -> None:
    def noise_by_sample(plan: Plan) -> list[dict[int, float]]:
        evaluations: list[dict[int, float]] = [{}, {}]
        for rank in range(plan.world_size):
            with feeding(NoisyByIndex({}), plan, rank, 7, range(2), None) as feed:
                feed.open()
                for evaluation in evaluations:
                    torch.rand(rank)
                    for batch, counted in feed.evaluation():
                        evaluation |= dict(zip(batch["index"][counted].tolist(), batch["noise"].tolist(), strict=False))
        return evaluations

    first, second = noise_by_sample(plan)
    assert first == second == noise_by_sample(Plan(3))[0]
    assert sorted(first) == list(range(75)) and len(set(first.values())) == 75


def test_reading_leaves_the_generators_of_the_training_alone() -> None:
    workload = Noisy({})
    workload.numbers, workload.others = np.random.default_rng(0), random.Random(0)  # type: ignore[attr-defined]
    drawn, read = [], []
    for num_workers in (0, 1):
        workload.num_workers = num_workers
        with feeding(workload, Plan(4, 2), 0, 7, range(1), lambda done: False) as feed:
            read += list(feed.step(0))
        own_numbers = workload.numbers.random(), workload.others.random()  # type: ignore[attr-defined]
        drawn.append((*own_numbers, torch.rand(()).item(), random.random(), np.random.rand()))
    assert drawn[0] == drawn[1]
    assert torch.equal(read[0], read[2])
    assert torch.equal(read[1], read[3])


class Counting(IterableDataset[Tensor]):
    def __init__(self, num: int, length: int | None = None) -> None:
        self.num, self.length = num, num if length is None else length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Tensor]:
        start = 100.0 * random.randrange(1000)
        for number in range(self.num):
            yield torch.tensor([start + number, torch.rand(()).item()])


class Streamed(Noisy):
    def dataset(self, split: str) -> Any:
        return Counting(10 if split == "train" else 3, self.params.get("length"))


def test_an_iterable_set_is_the_same_under_every_plan_and_begins_again_with_each_epoch() -> None:
    expected_batches = batches(Plan(8), make=Streamed)
    assert [batch.tolist() for batch in batches(Plan(1, 4, dp_shard=2), make=Streamed, workers=1)][:2] == [
        batch.tolist() for batch in expected_batches
    ][:2]
    assert torch.equal(batches(Plan(4, 2), range(2, 3), Streamed)[0], expected_batches[3])
    starts = (torch.cat([expected_batches[0], expected_batches[1], expected_batches[3]])[:, 0] // 100).tolist()
    assert len(set(starts[:10])) == 1 and len(set(starts)) == 3
    with pytest.raises(Exception, match=r'dataset\("train"\) ended after 10 samples: its length'):
        batches(Plan(8), make=Streamed, length=12)


def test_an_error_in_a_worker_is_raised_in_the_rank_with_its_place() -> None:
    with pytest.raises(KeyError, match="label") as caught:
        batches(Plan(8), workers=1, fails_at=3)
    assert any(file == __file__ for file, _ in vars(caught.value)["_raised_in_another_process"])


# torch raises its error in the handler of SIGCHLD, so wherever this process is: in a callback it is only a warning.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_worker_that_is_killed_is_a_fault_of_the_host_with_its_cause() -> None:
    with pytest.raises(DataFault, match=r"data worker 0 of 1 on rank 0 was killed by SIGKILL .* run out of memory"):
        batches(Plan(8), workers=1, dies_at=3)


def test_a_training_that_ends_early_leaves_no_worker() -> None:
    with feeding(Noisy({"workers": 2}), Plan(8), 0, 7, range(100), lambda done: False) as feed:
        assert isinstance(feed, DatasetFeed)
        next(feed.step(0))
        workers = list(feed._workers._workers)
        assert len(workers) == 2 and all(worker.is_alive() for worker in workers)
    assert not any(worker.is_alive() for worker in workers)


def test_a_collate_that_draws_is_refused() -> None:
    class Mixed(Noisy):
        def collate(self, samples: list[Tensor]) -> Tensor:
            return torch.stack(samples) * torch.rand(())

    with pytest.raises(WrongResult, match="draws random numbers, which would depend on how a step is divided"):
        batches(Plan(8), make=Mixed)
