"""Workloads as users write them, whose evaluation needs other memory than their training steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from workloads.protocol import Batch, Workload


class Classifier(Workload):
    """Images through convolutions. Subclasses differ in what they evaluate."""

    num_train, num_eval = 512, 256
    num_classes = 100

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__(params)
        self.width, self.size = int(params["width"]), int(params.get("size", 32))

    def build_model(self) -> nn.Module:
        width = self.width
        return nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, self.num_classes),
        )  # fmt: skip

    def train_batch(self, indices: Tensor) -> Batch:
        x = torch.sin(torch.arange(3 * self.size**2).float() * (indices[:, None] + 1))
        return x.view(-1, 3, self.size, self.size), indices % self.num_classes

    def eval_batch(self, indices: Tensor) -> Batch:
        return self.train_batch(indices + self.num_train)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1])

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        return {"accuracy": (model(batch[0]).argmax(-1) == batch[1]).float()}


class Flips(Classifier):
    """Averages over flipped copies of each image."""

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        x, y = batch
        copies = torch.cat([x, x.flip(-1), x.flip(-2), x.flip(-1, -2)])
        logits = model(copies).softmax(-1).view(4, len(x), -1).mean(0)
        return {"accuracy": (logits.argmax(-1) == y).float(), "loss": -logits.gather(1, y[:, None])[:, 0].log()}


class TopFive(Classifier):
    """Top-5 accuracy and a row of the confusion matrix of each sample, over many classes."""

    num_classes = 20_000

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        hidden = model[:-1](batch[0])  # type: ignore[index]
        chosen = model[-1].weight[:64]  # type: ignore[index]
        return functional.cross_entropy(hidden @ chosen.T, batch[1] % 64) + model[-1].bias[:64].square().mean()  # type: ignore[index]

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        logits, y = model(batch[0]), batch[1]
        best = logits.topk(5).indices
        confusion = functional.one_hot(best[:, 0], self.num_classes).float()
        margin = (confusion * logits.softmax(-1)).sum(-1)
        return {"top5": (best == y[:, None]).any(-1).float(), "margin": margin}


class Neighbours(Classifier):
    """Compares the features of each sample with a bank of features of training samples."""

    num_neighbours, num_bank = 20, 96

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        encoder = model[:-1]  # type: ignore[index]
        seen, labels = self.train_batch(torch.arange(self.num_bank))
        bank = functional.normalize(encoder(seen), dim=-1)
        near = (functional.normalize(encoder(batch[0]), dim=-1) @ bank.T).topk(self.num_neighbours).indices
        votes = functional.one_hot(labels[near], self.num_classes).sum(1)
        return {"knn": (votes.argmax(-1) == batch[1]).float()}


class Pairs(Classifier):
    """Ranks the samples of a batch against each other, which is not linear in their number."""

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        logits = model(batch[0])
        apart = (logits[:, None, :] - logits[None, :, :]).abs()
        return {"spread": apart.mean((1, 2)), "accuracy": (logits.argmax(-1) == batch[1]).float()}


class Arrays(Classifier):
    """Calculates a metric with NumPy."""

    num_classes = 5000

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        logits = model(batch[0]).log_softmax(-1)
        guesses = logits.argmax(-1).cpu().numpy()
        right = guesses == batch[1].cpu().numpy()
        return {"accuracy": torch.from_numpy(right.astype("float32")), "confidence": logits.amax(-1).exp()}


class Segmentation(Classifier):
    """Learns masks of a quarter of the size, and is evaluated at full size."""

    num_classes = 21

    def build_model(self) -> nn.Module:
        width = self.width
        return nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, 2, 1), nn.BatchNorm2d(2 * width), nn.ReLU(),
            nn.Conv2d(2 * width, self.num_classes, 1),
        )  # fmt: skip

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        x, y = batch
        logits = model(x)
        return functional.cross_entropy(logits, y[:, None, None].expand(-1, *logits.shape[2:]) % self.num_classes)

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        x, y = batch
        logits = functional.interpolate(model(x), size=x.shape[-2:], mode="bilinear", align_corners=False)
        truth = functional.one_hot(y % self.num_classes, self.num_classes)[:, :, None, None]
        guess = functional.one_hot(logits.argmax(1), self.num_classes).permute(0, 3, 1, 2)
        inside = (guess * truth).flatten(1).sum(1).float()
        return {"dice": 2 * inside / (guess.flatten(1).sum(1) + truth.sum((1, 2, 3)))}


class Text(Workload):
    """A causal transformer. It trains on a few of the words; its evaluation has the logits of all."""

    num_train, num_eval = 512, 256
    num_words = 8000

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__(params)
        self.width, self.depth, self.context = int(params["width"]), int(params.get("depth", 6)), 32

    def build_model(self) -> nn.Module:
        return _Decoder(self.num_words, self.width, self.depth, self.context)

    def train_batch(self, indices: Tensor) -> Batch:
        return (indices[:, None] * 31 + torch.arange(self.context + 1) * 7) % self.num_words

    def eval_batch(self, indices: Tensor) -> Batch:
        return self.train_batch(indices + self.num_train)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return functional.cross_entropy(model(batch[:, :4]).flatten(0, 1), batch[:, 1:5].flatten())

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        logits = model(batch[:, :-1])
        loss = functional.cross_entropy(logits.transpose(1, 2), batch[:, 1:], reduction="none").mean(1)
        return {"loss": loss, "accuracy": (logits.argmax(-1) == batch[:, 1:]).float().mean(1)}


class Generated(Text):
    """Continues each text word by word."""

    num_words = 3000

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        words = batch[:, :8]
        for _ in range(12):
            words = torch.cat([words, model(words)[:, -1:].argmax(-1)], 1)
        return {"right": (words[:, 8:] == batch[:, 8:20]).float().mean(1)}


class _Decoder(nn.Module):
    def __init__(self, num_words: int, width: int, depth: int, context: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(num_words, width), nn.Embedding(context, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.1, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.head = nn.Linear(width, num_words)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        hidden = self.words(x) + self.places.weight[: x.shape[1]]
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        return self.head(hidden)


MODELS = {
    kind.__name__.lower(): kind
    for kind in (Classifier, Flips, TopFive, Neighbours, Pairs, Arrays, Segmentation, Text, Generated)
}
