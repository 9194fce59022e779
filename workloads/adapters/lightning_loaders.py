"""Checks the loaders of a LightningDataModule: what they ask for and ScaMP does not do is refused, with what to write.

ScaMP reads samples itself. It takes the data set, ``collate_fn``, ``batch_size`` and ``num_workers`` of a loader.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from workloads.datasets import SetName, is_iterable
from workloads.refusals import WorkloadError

_METHODS: Mapping[SetName, str] = {"train": "train_dataloader", "eval": "val_dataloader"}


def loaders_of(datamodule: Any, *, has_order: bool, has_collate: bool) -> Mapping[SetName, DataLoader[Any]]:
    """The loader of each set. Raises ``WorkloadError`` for those that would train or measure something else here.

    ``has_order`` and ``has_collate`` say whether the workload defines these methods, which replace the loaders' own.
    """
    datamodule.prepare_data()
    datamodule.setup("fit")
    loaders = {split: getattr(datamodule, method)() for split, method in _METHODS.items()}
    for split, loader in loaders.items():
        where = f"{_METHODS[split]} of {type(datamodule).__name__}"
        if not isinstance(loader, DataLoader):
            raise WorkloadError(f"{where} returns a {type(loader).__name__}: return one DataLoader")
        if not (has_order and split == "train"):
            _expect_usual_batches(loader, split, where)
    if not has_collate and loaders["train"].collate_fn != loaders["eval"].collate_fn:
        raise WorkloadError(
            f"the loaders of {type(datamodule).__name__} have different functions as collate_fn, but held-out samples "
            "are put together like those of training: give both the same, and change samples of training in their "
            "data set or in augment of the workload"
        )
    return loaders


def _expect_usual_batches(loader: DataLoader[Any], split: SetName, where: str) -> None:
    instead = (
        "define order(epoch, generator) in the workload, which returns the indices of an epoch, and name batch in the "
        "study"
        if split == "train"
        else "give it a data set of the samples that count, such as a torch.utils.data.Subset"
    )
    if type(loader.batch_sampler) is not BatchSampler:
        kind = type(loader.batch_sampler).__name__ if loader.batch_sampler is not None else "no batch_size"
        raise WorkloadError(f"{where} has {kind}, and ScaMP makes batches itself: give it a batch_size, or {instead}")
    if is_iterable(loader.dataset):
        return
    sampler = loader.sampler
    if isinstance(sampler, SequentialSampler) and split == "train":
        raise WorkloadError(
            f"{where} does not shuffle, but ScaMP does: pass shuffle=True, or define order(epoch, generator) in the "
            "workload, which returns the indices of an epoch, such as range(self.num_train)"
        )
    is_shuffle = isinstance(sampler, RandomSampler) and not sampler.replacement
    if not (isinstance(sampler, SequentialSampler) or (is_shuffle and len(sampler) == len(loader.dataset))):  # type: ignore[arg-type]
        raise WorkloadError(f"{where} has a {type(sampler).__name__}, which nothing would ask here: {instead}")
