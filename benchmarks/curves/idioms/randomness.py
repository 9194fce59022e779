"""Random draws in ``train_batch``: augmentation by the generators of torch, numpy and Python."""

import random
from abc import abstractmethod

import numpy
import torch
from torch import nn
from torch.nn import functional

from .points import WIDTH, Images, Points, Stack


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.linear(x).tanh()


class Drawing(Points):
    def build_model(self):
        return Stack(*(Block() for _ in range(2)))

    @abstractmethod
    def train_batch(self, indices):
        return super().train_batch(indices)


class NoiseByTorch(Drawing):
    """Noise of each sample from torch's global generator.

    From https://github.com/huggingface/transformers/issues/37932 (ranks whose augmentation is the same).
    """

    def train_batch(self, indices):
        points, labels = super().train_batch(indices)
        return points + 0.3 * torch.randn_like(points), labels


class NoiseByNumpy(Drawing):
    """Noise of each sample from numpy's global generator.

    From https://github.com/facebookresearch/fairseq/issues/1383 (numpy's seed in workers that load data).
    """

    def train_batch(self, indices):
        points, labels = super().train_batch(indices)
        return points + 0.3 * torch.from_numpy(numpy.random.randn(*points.shape)).float(), labels


class FlipsByPython(Images):
    """Flips of single images by Python's own generator, in a loop over samples.

    From https://github.com/open-mmlab/OpenPCDet/issues/886 (augmentation that is the same in all workers).
    """

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Conv2d(2, 6, 3, padding=1)
            self.blocks = nn.ModuleList(nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), nn.ReLU()) for _ in range(2))
            self.head = nn.Linear(6, 4)

        def forward(self, images):
            x = self.first(images)
            for block in self.blocks:
                x = x + block(x)
            return self.head(x.mean((2, 3)))

    def build_model(self):
        return self.Net()

    def train_batch(self, indices):
        images, labels = super().train_batch(indices)
        return torch.stack([image.flip(-1) if random.random() < 0.5 else image for image in images]), labels


class Mixup(Drawing):
    """Each sample is mixed with another of the batch, by one share for the whole batch.

    From https://github.com/pytorch/vision/issues/8191 (what mixup draws for a batch).
    """

    def train_batch(self, indices):
        points, labels = super().train_batch(indices)
        order, share = torch.randperm(len(indices)), float(numpy.random.beta(1.0, 1.0))
        targets = functional.one_hot(labels, 4).float()
        return share * points + (1 - share) * points[order], share * targets + (1 - share) * targets[order]

    def eval_batch(self, indices):
        points, labels = super().eval_batch(indices)
        return points, functional.one_hot(labels, 4).float()


class GeneratorOfItsOwn(Drawing):
    """Noise from a numpy generator that the workload made in its constructor and keeps.

    From https://github.com/facebookresearch/detr/issues/297 (seeds that depend on the rank).
    """

    def __init__(self, params):
        super().__init__(params)
        self.generator = numpy.random.default_rng(7)

    def train_batch(self, indices):
        points, labels = super().train_batch(indices)
        scale = self.generator.uniform(0.8, 1.2)
        return points * scale + torch.from_numpy(self.generator.normal(0, 0.3, points.shape)).float(), labels


class NoiseByIndex(Drawing):
    """Noise from a generator that is seeded by the sample's number: the same in every step.

    From https://github.com/Lightning-AI/pytorch-lightning/issues/20412 (the same augmentation in each epoch).
    """

    def train_batch(self, indices):
        points, labels = super().train_batch(indices)
        noise = [torch.randn(8, generator=torch.Generator().manual_seed(int(index))) for index in indices]
        return points + 0.3 * torch.stack(noise), labels
