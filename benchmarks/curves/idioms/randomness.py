"""Random draws in ``train_batch``: augmentation by the generators of torch, numpy and Python."""

import random

import numpy
import torch

from .points import Block, Stacked


class NoiseByTorch(Stacked):
    """Noise of each sample from torch's global generator.

    From https://github.com/huggingface/transformers/issues/37932 (ranks whose augmentation is the same).
    """

    block = Block

    def train_batch(self, indices):
        points, labels = super().train_batch(indices)
        return points + 0.3 * torch.randn_like(points), labels


class FlipsByPython(Stacked):
    """Flips of single samples by Python's own generator, in a loop over samples.

    From https://github.com/open-mmlab/OpenPCDet/issues/886 (augmentation that is the same in all workers).
    """

    block = Block

    def train_batch(self, indices):
        points, labels = super().train_batch(indices)
        return torch.stack([point.flip(-1) if random.random() < 0.5 else point for point in points]), labels


class GeneratorOfItsOwn(Stacked):
    """Noise from a numpy generator that the workload made in its constructor and keeps.

    From https://github.com/facebookresearch/detr/issues/297 (seeds that depend on the rank).
    """

    block = Block

    def __init__(self, params):
        super().__init__(params)
        self.generator = numpy.random.default_rng(7)

    def train_batch(self, indices):
        points, labels = super().train_batch(indices)
        scale = self.generator.uniform(0.8, 1.2)
        return points * scale + torch.from_numpy(self.generator.normal(0, 0.3, points.shape)).float(), labels
