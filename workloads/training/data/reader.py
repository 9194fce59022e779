"""Reads the batches of a data set, in the rank's process or in one of its workers, with the same result."""

from __future__ import annotations

import copy
import ctypes
import os
import pickle
import resource
import signal
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from scamp.workload.datasets import Reading, SamplePlace, Seed, SetName, opened_dataset
from scamp.workload.seeds import drawn_from, kept_generators, mixed, seed_host
from workloads.protocol import Batch, Workload, defines
from workloads.refusals import WrongResult, frames_of, kinds_of, raised_in
from workloads.training.memory.process_memory import host_copy

_OF_EVALUATION = -1  # stands for the epoch: held-out samples are the same in every evaluation
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A micro-batch to read: places in the order of training, or of the held-out samples. ``step`` is for messages."""

    split: SetName
    places: list[SamplePlace]
    step: int


@dataclass(frozen=True, slots=True)
class Failure:
    """An error of the user's code in a worker: the error, or its words if it cannot be sent, and where it happened."""

    error: BaseException | str
    frames: tuple[tuple[str, int], ...]

    def to_error(self) -> BaseException:
        """The error to raise in the rank."""
        error = RuntimeError(self.error) if isinstance(self.error, str) else self.error
        return raised_in(error, self.frames)


class Reader:
    """The data set of torch's ``DataLoader``: request → batch. The generators of the process stay as they are."""

    def __init__(self, workload: Workload, seed: int) -> None:
        self._workload, self._seed = workload, seed
        self._readings: dict[SetName, Reading] = {}
        self.kept: dict[SamplePlace, Any] | None = None
        """The training samples of the last request for others than these; None: they are not kept."""

    def open(self, split: SetName) -> Reading:
        """The reading of a set, which is made at its first use."""
        if split not in self._readings:
            self._readings[split] = Reading(self._workload, split)
        return self._readings[split]

    def read(self, request: ReadRequest, *, keeps_generators: bool = True) -> Batch:
        """The batch that ``request`` asks for. Raises ``WrongResult`` if it depends on how a step is divided.

        The caller seeds all generators afterwards if this need not ``keeps_generators``, which takes 0.2 ms.
        """
        workload, split = self._workload, request.split
        dataset, augments = opened_dataset(workload, split), defines(workload, "augment")

        def seed(place: SamplePlace) -> torch.Generator:
            epoch = place.epoch if split == "train" else _OF_EVALUATION
            number = mixed(self._seed, epoch, place.position)
            seed_host(number, workload, dataset)
            return torch.Generator().manual_seed(mixed(number, 1)) if augments else torch.default_generator

        with kept_generators(workload, dataset) if keeps_generators else nullcontext():
            samples = self._samples(request, seed)
            is_own = defines(workload, "collate")  # the default one draws nothing
            before = drawn_from(workload) if is_own else None
            batch = workload.collate(samples)
            if is_own and drawn_from(workload) != before:
                raise WrongResult(
                    workload.collate,
                    "draws random numbers, which would depend on how a step is divided into micro-batches",
                    "draw them in augment, or in the data set for each sample",
                )
        if not any(isinstance(leaf, Tensor) for leaf in tree_leaves(batch)):
            method = workload.collate if defines(workload, "collate") else workload.dataset
            raise WrongResult(method, f"gives a batch that is {kinds_of(batch)}", "make batches of tensors")
        return batch

    def _samples(self, request: ReadRequest, seed: Seed) -> list[Any]:
        if self.kept is None or request.split != "train":
            return self.open(request.split).samples(request.places, seed)
        if not self.kept.keys() >= set(request.places):
            samples = self.open(request.split).samples(request.places, seed)
            self.kept = {place: _copied(sample) for place, sample in zip(request.places, samples, strict=True)}
            return samples
        return [_copied(self.kept[place]) for place in request.places]

    def __getitem__(self, request: ReadRequest) -> Batch | Failure:
        """The batch, or how reading it failed; called in a worker."""
        try:
            batch = self.read(request)
            pickle.dumps(tree_map_only(Tensor, lambda tensor: None, batch))  # or the batch would be lost on its way
            return batch
        except Exception as error:
            frames = frames_of(error)
            try:
                sent = pickle.loads(pickle.dumps(error))
            except Exception:
                return Failure(f"{type(error).__name__}: {error}", frames)
            return Failure(sent, frames)


def _copied(sample: Any) -> Any:
    """A copy of a sample, whose tensors lie in host memory that is not the candidate's."""
    return tree_map(lambda leaf: host_copy(leaf) if type(leaf) is Tensor else copy.deepcopy(leaf), sample)


def begin_worker(rank_pid: int, number: int) -> None:
    """Make a new worker end with its rank, print to the rank's log, and take the memory that it needs."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # also if the rank is killed
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # the rank's have locks that another thread may hold now
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    if os.getppid() != rank_pid:  # it has died already
        os._exit(1)
