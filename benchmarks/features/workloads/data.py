"""Ways to give data: data sets, worker processes, augmentation, orders of an epoch and samples of different lengths."""

import random

import numpy
import torch
from base import CLASSES, Base, samples
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from workloads.protocol import Workload

NUM = {"train": (0, 50), "eval": (50, 71)}


class Vectors(Dataset):
    """Sequences with classes, changed by all three global generators if ``noisy``."""

    def __init__(self, split, noisy=False):
        first, last = NUM[split]
        self.inputs, self.classes = (tensor[first:last] for tensor in samples(71))
        self.noisy = noisy

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        inputs = self.inputs[index]
        if self.noisy:
            inputs = inputs + 0.1 * torch.randn(inputs.shape) + 0.1 * random.random() + 0.1 * numpy.random.randn()
        return {"inputs": inputs.float(), "class": int(self.classes[index])}


class Divided(Workload):
    """Which samples are held out is drawn at random, by torch and by numpy."""

    build_model = Base.build_model

    def dataset(self, split):
        inputs, classes = samples(71)
        order = torch.from_numpy(numpy.random.permutation(71))
        both = torch.utils.data.random_split(TensorDataset(inputs[order], classes[order]), [50, 21])
        return both[split == "eval"]

    loss, evaluate = Base.loss, Base.evaluate


class Stream(IterableDataset):
    def __init__(self, split):
        self.vectors = Vectors(split)

    def __len__(self):
        return len(self.vectors)

    def __iter__(self):
        start = random.randrange(len(self.vectors))
        for index in range(len(self.vectors)):
            sample = self.vectors[(start + index) % len(self.vectors)]
            yield {**sample, "inputs": sample["inputs"] + 0.1 * torch.randn(())}


class OfDataset(Workload):
    """The model and the loss of ``Base``, with samples from data sets."""

    def __init__(self, params):
        super().__init__(params)
        self.num_workers = params.get("workers", 0)

    build_model = Base.build_model

    def dataset(self, split):
        return Vectors(split)

    def loss(self, model, batch):
        return Base.loss(self, model, (batch["inputs"], batch["class"]))

    def evaluate(self, model, batch):
        return Base.evaluate(self, model, (batch["inputs"], batch["class"]))


class Noisy(OfDataset):
    def dataset(self, split):
        return Vectors(split, noisy=split == "train")


class Augmented(OfDataset):
    def augment(self, sample, generator):
        flip = torch.rand((), generator=generator) < 0.5
        inputs = sample["inputs"].flip(0) if flip else sample["inputs"]
        return {**sample, "inputs": inputs + 0.2 * torch.randn(inputs.shape, generator=generator)}


class Streamed(OfDataset):
    def dataset(self, split):
        return Stream(split)


class Weighted(Augmented):
    """Draws the samples of an epoch with replacement, those of class 0 four times as often."""

    def order(self, epoch, generator):
        weights = 1.0 + 3.0 * (samples(71)[1][:50] == 0)
        return torch.multinomial(weights, 40, replacement=True, generator=generator)


class WeightedByIndex(Base):
    def order(self, epoch, generator):
        return list(torch.utils.data.WeightedRandomSampler([1.0] * 25 + [3.0] * 25, 30))  # the global generator


class Pooled(nn.Module):
    """The mean over the true positions of each sequence."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(CLASSES, 32)
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.last = nn.Linear(32, CLASSES)

    def forward(self, inputs, mask):
        x = self.first(inputs)
        for layer in self.layers:
            x = x + functional.gelu(layer(x))
        return self.last((x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


class Lengthy(Workload):
    """Sequences of 2 to 40 vectors, those of a batch of about one length, padded to the longest of a micro-batch."""

    scale = 1

    def __init__(self, params):
        super().__init__(params)
        numbers = torch.Generator().manual_seed(3)
        self.sizes = torch.randint(2, 40, (71,), generator=numbers) * self.scale
        self.sequences = [torch.randn(size, CLASSES, generator=numbers) for size in self.sizes.tolist()]
        self.num_workers = params.get("workers", 0)

    def build_model(self):
        return Pooled()

    def dataset(self, split):
        first, last = NUM[split]
        return self.sequences[first:last]

    def lengths(self, split):
        first, last = NUM[split]
        return self.sizes[first:last]

    def order(self, epoch, generator):
        batch = self.params.get("batch", 8)
        shuffled = torch.randperm(50, generator=generator)
        by_length = shuffled[self.sizes[shuffled].argsort()][50 % batch :]  # the shortest are left out
        buckets = by_length.view(-1, batch)
        drawn = buckets[torch.randperm(len(buckets) - 1, generator=generator)]
        # The longest are in the third step, which is measured, and one of them in each half of it.
        longest = torch.cat([buckets[-1:, ::2], buckets[-1:, 1::2]], 1)
        return torch.cat([drawn[:2], longest, drawn[2:]]).flatten()

    def collate(self, sequences):
        padded = nn.utils.rnn.pad_sequence(sequences, batch_first=True)
        sizes = torch.tensor([len(sequence) for sequence in sequences])
        classes = torch.stack([sequence.sum(0).argmax() for sequence in sequences])
        return padded, (torch.arange(padded.shape[1]) < sizes[:, None]).float(), classes

    def loss(self, model, batch):
        inputs, mask, classes = batch
        return functional.cross_entropy(model(inputs, mask), classes)

    def evaluate(self, model, batch):
        inputs, mask, classes = batch
        return {"loss": functional.cross_entropy(model(inputs, mask), classes, reduction="none")}
