"""Checks the loaders of a LightningDataModule: what they ask for and ScaMP does not do is refused, with what to write.

ScaMP reads samples itself. It takes the data set, ``collate_fn``, ``batch_size`` and ``num_workers`` of a loader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from scamp.workload.datasets import SetName, is_iterable
from workloads.refusals import WorkloadError

Keys = tuple[Any, ...]
"""Keys of nested lists and dictionaries, from the outside in."""
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


def keys_of_samples(dataset: Any, collate: Callable[[list[Any]], Any]) -> Keys | None:
    """The keys to the first list or tensor in a batch that has one entry for each sample; None if there is none.

    A list of pictures and a list of inputs and targets look alike, so batches of two and of three samples are compared.
    """
    indices = range(min(3, len(dataset)))
    samples = list(islice(dataset, 3)) if is_iterable(dataset) else [dataset[index] for index in indices]
    nums = [num for num in (2, 3) if num <= len(samples)]
    batches = {num: dict(_sizes(collate(samples[:num]))) for num in nums}
    paths = [path for path in batches[2] if all(batches[num].get(path) == num for num in nums)] if nums else []
    return next(iter(paths), None)


def _sizes(value: Any, path: Keys = ()) -> Iterator[tuple[Keys, int]]:
    """Yield (keys to it, number of entries) of each list, tuple and tensor in a batch."""
    if isinstance(value, list | tuple) or (isinstance(value, Tensor) and value.ndim):
        yield path, len(value)
    parts = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, part in parts:
        yield from _sizes(part, (*path, key))


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
