"""Checks the optional methods by which a workload gives its data, before anything is trained.

Raises ``WorkloadError`` or ``WrongResult`` for the user's mistakes; errors of the user's own code pass through.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import torch

from scamp.workload.datasets import NAMES, SamplePlace, SetName, is_iterable, opened_dataset
from workloads.protocol import BATCHES, Workload, defines
from workloads.refusals import WorkloadError, WrongResult, expect_counts, kinds_of
from workloads.training.data.order import SampleOrder, lengths_of
from workloads.training.data.reader import Reader, ReadRequest
from workloads.training.updates.update import scaled_from

_OF_DATASETS = ("collate", "augment")


def expect_data(workload: Workload) -> None:
    """Check all that can be checked without reading a sample."""
    _expect_one_way(workload)
    for name in NAMES if defines(workload, "dataset") else ():
        _expect_dataset(workload, name)
    expect_counts(workload)
    _expect_workers(workload)
    for name in NAMES:
        lengths_of(workload, name)
    if defines(workload, "order"):
        SampleOrder(workload, 0).epoch(0)


def expect_order(workload: Workload, batch: int) -> None:
    """Check that an epoch has the samples of one step, ``batch``: otherwise a step would train on samples twice.

    Tells the workload how many steps an epoch has.
    """
    length = SampleOrder(workload, 0).epoch_length
    if defines(workload, "order") and length < batch:
        raise WrongResult(
            workload.order,
            f"returns {length} indices, but a step has {batch} samples",
            "return at least as many indices as batch",
        )
    counted = scaled_from(workload) or batch
    workload.trial = replace(workload.trial, epoch_steps=ceil(length / counted))


def expect_samples(workload: Workload) -> None:
    """Read a few samples of each data set, as a rank does."""
    if not defines(workload, "dataset"):
        return
    reader = Reader(workload, 0)
    for name in NAMES:
        num = workload.num_train if name == "train" else workload.num_eval
        reader.read(ReadRequest(name, [SamplePlace(0, index, index) for index in range(min(2, num))], 0))


def _expect_one_way(workload: Workload) -> None:
    batches = [name for name in BATCHES if defines(workload, name)]
    if defines(workload, "dataset"):
        if batches:
            raise WorkloadError(
                f"the workload defines dataset and {' and '.join(batches)}: remove one of them, as samples come either "
                "from data sets or in batches by index; change a batch in collate, a sample in augment"
            )
    elif unused := [name for name in _OF_DATASETS if defines(workload, name)]:
        raise WorkloadError(
            f"the workload defines {' and '.join(unused)}, but no dataset, whose samples ScaMP would pass to it: "
            "define dataset, or do it in train_batch"
        )


def _expect_dataset(workload: Workload, name: SetName) -> None:
    dataset = opened_dataset(workload, name)
    if not (hasattr(dataset, "__getitem__") or hasattr(dataset, "__iter__")):
        raise WrongResult(
            workload.dataset,
            f'returns {kinds_of(dataset)} for "{name}"',
            "return a torch Dataset, or any other object with __len__ and __getitem__",
        )
    if isinstance(dataset, torch.utils.data.DataLoader):
        raise WrongResult(
            workload.dataset,
            f'returns a DataLoader for "{name}"',
            "return its data set; set num_workers in the workload, and define collate and order instead of its options",
        )


def _expect_workers(workload: Workload) -> None:
    for name, least in (("num_workers", 0), ("prefetch", 1)):
        value = getattr(workload, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise WorkloadError(f"{name} is {value!r}: it must be a whole number from {least}")
    if not defines(workload, "dataset"):
        if workload.num_workers:
            raise WorkloadError(
                f"num_workers is {workload.num_workers}, but workers read only the samples of a dataset: define "
                "dataset, or leave num_workers out"
            )
        return
    for name in NAMES:
        if is_iterable(opened_dataset(workload, name)):
            if name == "train" and defines(workload, "order"):
                raise WorkloadError(
                    'dataset("train") can only be read one sample after another, so order cannot choose: remove order, '
                    "or give the data set __getitem__"
                )
            if workload.num_workers > 1:
                raise WorkloadError(
                    f'num_workers is {workload.num_workers}, but dataset("{name}") can only be read one sample after '
                    "another, and each worker would read all of it: set num_workers to 1 or 0"
                )
