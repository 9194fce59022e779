"""Reads samples of a workload's data sets (``Workload.dataset``), one after another, and puts them together.

Sets are map-style or iterable. The caller seeds the generators for each sample, so that a sample is the same whichever
rank or process reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from scamp.workload.seeds import DATA_SEED, kept_generators, seed_host

SetName = Literal["train", "eval"]
"""The training samples, or the held-out ones."""
NAMES: tuple[SetName, ...] = ("train", "eval")
_CACHED = "_opened_datasets"  # attribute of a workload


class SamplePlace(NamedTuple):
    """A sample's place in the order of an epoch, and ``sample``, its index in the data set."""

    epoch: int
    position: int
    sample: int


class Source(Protocol):
    """The part of a workload that reads data."""

    def dataset(self, split: SetName) -> Any: ...

    def augment(self, sample: Any, generator: torch.Generator) -> Any: ...

    def collate(self, samples: list[Any]) -> Any: ...


Seed = Callable[[SamplePlace], torch.Generator]
"""Seeds all generators for a sample, and returns one more for ``augment``."""


class Count:
    """Number of samples of a workload's data set, unless the workload's class or constructor sets the attribute."""

    def __init__(self, split: SetName) -> None:
        self._split = split

    def __get__(self, workload: Any, owner: type) -> Any:
        if workload is None:
            return self
        try:
            return len(opened_dataset(workload, self._split))
        except (NotImplementedError, TypeError):  # Python asks ``__getattr__`` of the workload then, if there is one
            raise AttributeError(f"num_{self._split}") from None


def opened_dataset(workload: Any, split: SetName) -> Any:
    """The data set of ``split``; the workload makes it once, with the same random numbers for each ``split``.

    So sets that are divided at random have no sample in common, and every rank has the same.
    """
    opened = vars(workload).setdefault(_CACHED, {})
    if split not in opened:
        with kept_generators(workload):
            seed_host(DATA_SEED, workload)
            opened[split] = workload.dataset(split)
    return opened[split]


def is_iterable(dataset: Any) -> bool:
    """Whether the samples of ``dataset`` can only be read one after another."""
    return isinstance(dataset, torch.utils.data.IterableDataset) or not hasattr(dataset, "__getitem__")


def plain_batch(workload: Any, split: SetName, indices: Tensor) -> Any:
    """The samples ``indices`` of a set, put together, as in its first epoch without a shuffle."""
    places = [SamplePlace(0, index, index) for index in indices.tolist()]
    return Reading(workload, split).batch(places, lambda place: torch.Generator().manual_seed(place.sample))


class Reading:
    """Reads batches of one set. An iterable set is read on from where the last batch ended."""

    def __init__(self, workload: Source, split: SetName) -> None:
        self._workload, self._split = workload, split
        self._dataset = opened_dataset(workload, split)
        self._stream = _Stream(self._dataset, split) if is_iterable(self._dataset) else None

    def batch(self, places: Sequence[SamplePlace], seed: Seed) -> Any:
        """The batch of the samples at ``places``; those of training are augmented."""
        return self._workload.collate(self.samples(places, seed))

    def samples(self, places: Sequence[SamplePlace], seed: Seed) -> list[Any]:
        """The samples at ``places``, those of training augmented."""
        return [self._sample(place, seed) for place in places]

    def _sample(self, place: SamplePlace, seed: Seed) -> Any:
        generator = seed(place)
        sample = self._dataset[place.sample] if self._stream is None else self._stream.at(place, seed)
        return self._workload.augment(sample, generator) if self._split == "train" else sample


class _Stream:
    """An iterable set, which begins again in each epoch. All samples before the wanted one are read and dropped."""

    def __init__(self, dataset: Any, split: SetName) -> None:
        self._dataset, self._split = dataset, split
        self._samples: Iterator[Any] = iter(())
        self._here: SamplePlace | None = None  # that of ``_sample``
        self._sample: Any = None

    def at(self, place: SamplePlace, seed: Seed) -> Any:
        here = self._here
        if here is not None and (here.epoch, here.position) == (place.epoch, place.position):
            return self._sample
        if here is None or here.epoch != place.epoch or here.position > place.position:
            seed(SamplePlace(place.epoch, -1, -1))
            self._samples, here = iter(self._dataset), SamplePlace(place.epoch, -1, -1)
        for position in range(here.position + 1, place.position + 1):
            self._here = SamplePlace(place.epoch, position, position)
            seed(self._here)
            try:
                self._sample = next(self._samples)
            except StopIteration:
                raise EndedEarly(self._split, position) from None
        return self._sample


class EndedEarly(Exception):
    """An iterable set has fewer samples than its length."""

    def __init__(self, split: str, num: int) -> None:
        super().__init__(
            f'dataset("{split}") ended after {num} samples: its length, or num_{split}, must be the number of samples '
            "that one iteration yields"
        )
        self.split, self.num = split, num

    def __reduce__(self) -> tuple[type[EndedEarly], tuple[str, int]]:
        return EndedEarly, (self.split, self.num)
