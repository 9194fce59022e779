"""The micro-batches of one rank, in the order in which a training needs them: made by index, or read from a data set.

Where the workload asks for workers, they are forks of the rank that read ahead while it trains, also over evaluations.
What a worker holds, and the micro-batches that wait, are in host memory outside of the rank's budget.
"""

from __future__ import annotations

import os
import random
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map, tree_map_only
from torch.utils.data import DataLoader

from estimators.model import Plan
from scamp.workload.datasets import NAMES, SamplePlace, SetName, is_iterable, opened_dataset
from scamp.workload.seeds import drawn_from, seed_everything
from workloads.protocol import Batch, Workload, defines
from workloads.training.data.batch_transform import Transform
from workloads.training.data.order import SampleOrder
from workloads.training.data.reader import Failure, Reader, ReadRequest, begin_worker
from workloads.training.faults import HostFault
from workloads.training.memory.process_memory import host_copy
from workloads.training.samples import evaluation_slices, rank_slices

DRAWN_TOGETHER = 32
"""Held-out samples that are made at once where their batches are random."""
DEATH_SECONDS = 1.0  # in which the exit code of a worker is known after its last sign of life


class DataFault(HostFault):
    """A worker that reads data has died; the message says how."""


class Feed(Protocol):
    """Gives a rank its micro-batches, in host memory. Both methods yield each batch on demand and hold none."""

    @property
    def is_shared(self) -> bool:
        """Whether batches lie in host memory that is not counted as the rank's."""
        ...

    @property
    def keeps_last(self) -> bool:
        """Whether ``parts`` has only the last micro-batch of this rank, as data is read in order and divided.

        If workers read it, samples are parts of a batch that they have put together.
        """
        ...

    def open(self) -> None:
        """Read a first sample of each set here, so that what that loads is not part of the budget."""
        ...

    def indices(self, step: int) -> Tensor:
        """Indices of the samples of optimizer step ``step``, over all ranks."""
        ...

    def step(self, step: int) -> Iterator[Batch]:
        """The micro-batches of optimizer step ``step``; afterwards the generators are seeded for its passes."""
        ...

    def parts(self, step: int, places: Sequence[Tensor]) -> Iterator[Batch]:
        """Batches of the samples at ``places`` in optimizer step ``step``, after ``step`` has given that step's own.

        The caller keeps the generators. Of data that is read in order only the last micro-batch of this rank is there.
        """
        ...

    def held_out(self, indices: Tensor, places: Sequence[Tensor]) -> Iterator[Batch]:
        """Batches of the held-out samples at ``places`` among those with these ``indices``. As ``parts``."""
        ...

    def evaluation(self) -> Iterator[tuple[Batch, Tensor]]:
        """Each micro-batch of held-out samples, with the mask of those that count, shape [n]; others only fill up."""
        ...


@contextmanager
def feeding(
    workload: Workload,
    plan: Plan,
    rank: int,
    seed: int,
    steps: range,
    is_evaluated: Callable[[int], bool] | None,
    first: int = 0,
) -> Iterator[Feed]:
    """Yields the feed of ``rank`` for ``steps``; ``is_evaluated`` says whether an evaluation follows that many steps.

    None: that is not known, so workers do not read for evaluations. ``first`` is the number of samples before step 0.
    Raises ``DataFault`` if one of its workers dies.
    """
    if not defines(workload, "dataset"):
        yield IndexFeed(workload, plan, rank, seed, first)
        return
    feed = DatasetFeed(workload, plan, rank, seed, steps, is_evaluated, first)
    try:
        yield feed
    except RuntimeError as error:
        if (death := feed.death()) and "DataLoader worker" in str(error):  # torch raises it anywhere in a main thread
            raise death from None
        raise
    finally:
        feed.close()


class Repeated:
    """The micro-batches of a step, each made ``ready``, once for every phase of the step: made anew, or kept where they
    are read from a data set. Each phase begins with the same random numbers."""

    def __init__(self, feed: Feed, step: int, ready: Callable[[Batch], Batch], *, ahead: bool = False) -> None:
        self._feed, self._step, self._ready = feed, step, ready
        self._kept: list[Batch] | None = None
        if ahead:
            self._keep()

    def __iter__(self) -> Iterator[Batch]:
        if isinstance(self._feed, IndexFeed):
            return map(self._ready, self._feed.step(self._step))
        batches = self._keep()
        torch_state, pythons, numpys = self._states
        torch.set_rng_state(torch_state)
        random.setstate(pythons)
        np.random.set_state(numpys)
        return map(self._ready, batches)

    def _keep(self) -> list[Batch]:
        if self._kept is None:
            self._kept = list(self._feed.step(self._step))
            self._states = torch.get_rng_state(), random.getstate(), np.random.get_state()
        return self._kept


class IndexFeed:
    """Calls ``train_batch`` and ``eval_batch``."""

    def __init__(self, workload: Workload, plan: Plan, rank: int, seed: int, first: int = 0) -> None:
        self._workload, self._plan, self._rank, self._seed = workload, plan, rank, seed
        self._order, self._transform = SampleOrder(workload, seed, first), Transform(workload, seed)
        self._draws_samples = False  # whether ``train_batch`` draws random numbers
        self._draws_held_out: bool | None = None  # whether ``eval_batch`` does; None before it was called

    @property
    def is_shared(self) -> bool:
        """Whether all micro-batches of a step wait on the host, as they were made together."""
        return self._draws_samples

    @property
    def keeps_last(self) -> bool:
        return False

    def open(self) -> None:
        for make_batch in (self._workload.train_batch, self._workload.eval_batch):
            make_batch(torch.arange(1))

    def indices(self, step: int) -> Tensor:
        return self._order.places(step, self._plan.batch)[:, 2]

    def step(self, step: int) -> Iterator[Batch]:
        """This rank's micro-batches, and then the generators seeded for its passes.

        A resumed run draws the same random numbers. ``train_batch`` draws the same under every plan: where it draws,
        each rank makes the batch of the whole step and takes its part. In the passes only tensor-parallel ranks draw
        the same, because they have the same samples.
        """
        workload, plan, seed = self._workload, self._plan, self._seed
        indices = self.indices(step)
        parts = rank_slices(indices, plan, self._rank)
        seed_everything((seed, step), workload)
        before = drawn_from(workload)
        batches = [workload.train_batch(parts[0])]
        if self._draws_samples or drawn_from(workload) != before:
            self._draws_samples = True
            del batches
            seed_everything((seed, step), workload)
            batch = workload.train_batch(indices)
            places = rank_slices(torch.arange(len(indices)), plan, self._rank)
            batches = [tree_map_only(Tensor, lambda tensor: host_copy(tensor[place]), batch) for place in places]  # noqa: B023
            del batch
        seed_everything((seed, step, plan.data_rank(self._rank)), workload)
        more = parts[len(batches) :]
        batches.reverse()
        while batches:
            yield self._transform(batches.pop(), step)  # nothing here holds a batch that has been used
        for part in more:
            yield self._transform(workload.train_batch(part), step)

    def parts(self, step: int, places: Sequence[Tensor]) -> Iterator[Batch]:
        seed_everything((self._seed, step), self._workload)
        return _parts(self._workload.train_batch, self.indices(step), places, together=self._draws_samples)

    def held_out(self, indices: Tensor, places: Sequence[Tensor]) -> Iterator[Batch]:
        seed_everything((self._seed, -1), self._workload)
        before = drawn_from(self._workload)
        self._workload.eval_batch(indices[places[0]])
        draws = drawn_from(self._workload) != before
        seed_everything((self._seed, -1), self._workload)
        return _parts(self._workload.eval_batch, indices, places, together=draws)

    def evaluation(self) -> Iterator[tuple[Batch, Tensor]]:
        """``eval_batch`` draws the same numbers for a sample in every evaluation, and under every plan.

        Where it draws, samples are made ``DRAWN_TOGETHER`` at once.
        """
        num, made = self._workload.num_eval, dict[int, Batch]()
        for part in evaluation_slices(num, self._plan, self._rank):
            indices = part.clamp(max=num - 1)
            if not self._draws_held_out:
                before = drawn_from(self._workload) if self._draws_held_out is None else None
                batch = self._workload.eval_batch(indices)
                self._draws_held_out = before is not None and drawn_from(self._workload) != before
                if not self._draws_held_out:
                    yield batch, part < num
                    del batch
                    continue
                del batch
            numbers = range(int(indices[0]) // DRAWN_TOGETHER, int(indices[-1]) // DRAWN_TOGETHER + 1)
            made = {number: made[number] if number in made else self._drawn(number) for number in numbers}
            parts = [_at(made[number], indices, number) for number in numbers]
            yield tree_map(_joined, *parts), part < num

    def _drawn(self, number: int) -> Batch:
        """The held-out samples from ``number`` × ``DRAWN_TOGETHER`` on, in host memory that is not the candidate's."""
        first = number * DRAWN_TOGETHER
        seed_everything((self._seed, -1, number), self._workload)
        last = min(first + DRAWN_TOGETHER, self._workload.num_eval)
        return tree_map_only(Tensor, host_copy, self._workload.eval_batch(torch.arange(first, last)))


class DatasetFeed:
    """Reads the data set of the workload, itself or in worker processes."""

    def __init__(
        self,
        workload: Workload,
        plan: Plan,
        rank: int,
        seed: int,
        steps: range,
        is_evaluated: Callable[[int], bool] | None,
        first: int = 0,
    ) -> None:
        self._workload, self._plan, self._rank, self._seed = workload, plan, rank, seed
        self._order, self._reader = SampleOrder(workload, seed, first), Reader(workload, seed)
        self._steps, self._is_evaluated = steps, is_evaluated
        self._transform = Transform(workload, seed)
        self._workers: Any = None  # torch's iterator, which yields the batches of ``_requests``
        self._num_left = 0  # batches of an earlier step that nobody has taken
        self._last: Batch | None = None  # that a worker has read, if it is to be kept
        for split in NAMES:
            self._reader.open(split)
        is_divided = any(layout.divides_batch for layout in plan.layouts)
        self._keeps_last = is_divided and is_iterable(opened_dataset(workload, "train"))
        if self.keeps_last and not workload.num_workers:
            self._reader.kept = {}
        if workload.num_workers:
            loader: DataLoader[Batch] = DataLoader(
                self._reader,  # type: ignore[arg-type]
                batch_size=None,
                sampler=self._requests(),
                num_workers=workload.num_workers,
                prefetch_factor=workload.prefetch,
                collate_fn=_unchanged,
                worker_init_fn=partial(begin_worker, os.getpid()),
                multiprocessing_context="fork",
                generator=torch.Generator(),
            )
            with warnings.catch_warnings():  # a process with threads forks here; `begin_worker` keeps that safe
                warnings.simplefilter("ignore", DeprecationWarning)
                self._workers = iter(loader)

    @property
    def is_shared(self) -> bool:
        return self._workers is not None

    @property
    def keeps_last(self) -> bool:
        return self._keeps_last

    def open(self) -> None:
        if self._workers is None:
            for split in NAMES:
                self._reader.read(ReadRequest(split, [SamplePlace(0, 0, 0)], 0))

    def indices(self, step: int) -> Tensor:
        return self._order.places(step, self._plan.batch)[:, 2]

    def step(self, step: int) -> Iterator[Batch]:
        requests, batches = self._of_step(step), list[Batch]()
        if self._workers is None:  # before the generators are seeded, so that reading need not keep their states
            batches.append(self._reader.read(requests.pop(0), keeps_generators=False))
        seed_everything((self._seed, step, self._plan.data_rank(self._rank)), self._workload)
        while batches:
            yield self._transform(batches.pop(), step)  # nothing here holds a batch that has been used
        for batch in self._batches(requests):
            if self.keeps_last and self._workers is not None:
                self._last = batch
            yield self._transform(batch, step)
            del batch

    def parts(self, step: int, places: Sequence[Tensor]) -> Iterator[Batch]:
        samples = self._order.places(step, self._plan.batch)
        if self._last is not None:
            first = rank_slices(torch.arange(self._plan.batch), self._plan, self._rank)[-1][0]
            yield from (tree_map_only(Tensor, lambda tensor: tensor[part - first], self._last) for part in places)  # noqa: B023
            return
        yield from (self._reader.read(_request("train", samples[part], step)) for part in places)

    def held_out(self, indices: Tensor, places: Sequence[Tensor]) -> Iterator[Batch]:
        yield from (self._reader.read(_of_held_out(indices[part], 0)) for part in places)

    def evaluation(self) -> Iterator[tuple[Batch, Tensor]]:
        num = self._workload.num_eval
        requests = self._of_evaluation(0)
        batches = self._batches(requests) if self._is_evaluated else map(self._reader.read, requests)
        for part in evaluation_slices(num, self._plan, self._rank):
            yield next(batches), part < num  # not ``zip``, which holds what it has yielded

    def close(self) -> None:
        if self._workers is not None:
            self._workers._shutdown_workers()
            self._workers = None

    def _batches(self, requests: list[ReadRequest]) -> Iterator[Batch]:
        while self._num_left:
            self._num_left -= 1
            self._wait_for_data()
        if self._workers is None:
            for request in requests:
                yield self._reader.read(request)
            return
        self._num_left = len(requests)
        while self._num_left:
            self._num_left -= 1
            yield self._wait_for_data()

    def _wait_for_data(self) -> Batch:
        try:
            answer = next(self._workers)
        except (RuntimeError, OSError, EOFError) as error:  # batches that lie with a dead worker cannot be fetched
            deadline = time.monotonic() + DEATH_SECONDS
            while not (death := self.death()) and time.monotonic() < deadline:
                time.sleep(0.01)
            raise (death or error) from None
        if isinstance(answer, Failure):
            raise answer.to_error()
        return answer

    def death(self) -> DataFault | None:
        """The fault of a worker that has died; None if all live."""
        workers = self._workers._workers if self._workers is not None else []
        dead = [(number, worker.exitcode) for number, worker in enumerate(workers) if worker.exitcode]
        if not dead:
            return None
        number, code = dead[0]
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        why = {
            signal.SIGKILL: "perhaps the host has run out of memory: use fewer num_workers, or smaller samples",
            signal.SIGBUS: "/dev/shm is full: make it larger (docker run --shm-size), or set num_workers to 0",
        }.get(-code, "set num_workers = 0 to see where the data set fails")
        return DataFault(
            f"data worker {number} of {len(workers)} on rank {self._rank} {how} while it read samples; {why}"
        )

    def _requests(self) -> Iterator[ReadRequest]:
        """All that the training will ask for; a training without steps is evaluated once."""
        if not self._steps and self._is_evaluated:
            yield from self._of_evaluation(0)
        for step in self._steps:
            yield from self._of_step(step)
            if self._is_evaluated and self._is_evaluated(step + 1):
                yield from self._of_evaluation(step)

    def _of_step(self, step: int) -> list[ReadRequest]:
        places = self._order.places(step, self._plan.batch)
        return [_request("train", part, step) for part in rank_slices(places, self._plan, self._rank)]

    def _of_evaluation(self, step: int) -> list[ReadRequest]:
        num = self._workload.num_eval
        parts = (part.clamp(max=num - 1) for part in evaluation_slices(num, self._plan, self._rank))
        return [_of_held_out(part, step) for part in parts]


def _parts(
    make: Callable[[Tensor], Batch], indices: Tensor, places: Sequence[Tensor], *, together: bool
) -> Iterator[Batch]:
    """Batches of the samples at ``places`` of ``indices``, cut from one if made ``together``."""
    if not together:
        yield from (make(indices[part]) for part in places)
        return
    batch = make(indices)
    for part in places:
        yield tree_map_only(Tensor, lambda tensor: host_copy(tensor[part]), batch)  # noqa: B023


def _at(batch: Batch, indices: Tensor, number: int) -> Batch:
    """The samples of ``indices`` that are in ``batch``, the one with this number."""
    places = indices[indices // DRAWN_TOGETHER == number] - number * DRAWN_TOGETHER
    return tree_map_only(Tensor, lambda tensor: tensor[places], batch)


def _joined(*parts: Any) -> Any:
    return torch.cat(parts) if isinstance(parts[0], Tensor) and len(parts) > 1 else parts[0]


def _of_held_out(indices: Tensor, step: int) -> ReadRequest:
    return _request("eval", torch.stack([torch.zeros_like(indices), indices, indices], 1), step)


def _request(split: SetName, places: Tensor, step: int) -> ReadRequest:
    return ReadRequest(split, [SamplePlace(*place) for place in places.tolist()], step)


def _unchanged(batch: Batch) -> Batch:
    return batch
