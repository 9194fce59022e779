"""The training of ``classifier_script.py`` as a workload: its data set and model are unchanged, the loops are gone.

The study beside it is ``classifier.yaml``.
"""

import math

import torch
from sklearn.datasets import load_digits
from sklearn.metrics import f1_score, roc_auc_score
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from workloads.protocol import Workload


class Digits(Dataset):
    """Digits of 8×8 pixels; the last 360 are held out. Those of training are shifted by up to a pixel."""

    def __init__(self, train):
        found = load_digits()
        chosen = slice(0, -360) if train else slice(-360, None)
        self.images = torch.tensor(found.images[chosen] / 16, dtype=torch.float32)
        self.labels = torch.tensor(found.target[chosen])
        self.train = train

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index][None]
        if self.train:
            x, y = torch.randint(-1, 2, (2,)).tolist()
            image = torch.roll(image, (x, y), (1, 2)) + 0.05 * torch.randn(1, 8, 8)
        return image, self.labels[index]


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Conv2d(1, width, 3, padding=1)
        self.layers = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.norms = nn.ModuleList(nn.GroupNorm(4, width) for _ in range(2))
        self.last = nn.Linear(16 * width, 10)

    def forward(self, images):
        x = self.first(images)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + functional.gelu(layer(norm(x)))
        return self.last(functional.avg_pool2d(x, 2).flatten(1))


def rare_first(labels):
    """A weight for each sample: the digits 8 and 9 are drawn twice as often."""
    return 1.0 + (labels >= 8)


class Classifier(Workload):
    default_batch = 64
    num_workers = 2

    def build_model(self):
        return Net(self.params.get("width", 32))

    def dataset(self, split):
        return Digits(train=split == "train")

    def order(self, epoch, generator):
        weights = rare_first(Digits(train=True).labels)
        return torch.multinomial(weights, len(weights), replacement=True, generator=generator)

    def on_step(self, step, steps, optimizer):
        for group in optimizer.param_groups:
            lr = self.params.get("lr", 3e-3)
            group["lr"] = lr * min(1, (step + 1) / 10) * (1 + math.cos(math.pi * step / steps)) / 2

    def loss(self, model, batch):
        images, labels = batch
        return functional.cross_entropy(model(images), labels)

    def evaluate(self, model, batch):
        images, labels = batch
        scores = model(images).softmax(-1)
        return {"accuracy": (scores.argmax(-1) == labels).float()}, (scores, labels)

    def summarize(self, outputs):
        scores, labels = outputs
        f1 = f1_score(labels, scores.argmax(-1), average="macro")
        auc = roc_auc_score(labels, scores, multi_class="ovr")
        return {"f1": f1, "auc": auc}
