"""An ordinary training script: digits, a data set with random shifts, weighted sampling, workers, warm-up, F1 and AUC.

``classifier.py`` beside it is the same training as a workload of ScaMP. Run this one with
``python examples/classifier_script.py``.
"""

import math

import torch
from sklearn.datasets import load_digits
from sklearn.metrics import f1_score, roc_auc_score
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

BATCH, EPOCHS, LR, WIDTH = 64, 4, 3e-3, 32


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


def main():
    torch.manual_seed(0)
    train, held_out = Digits(train=True), Digits(train=False)
    sampler = WeightedRandomSampler(rare_first(train.labels), len(train))
    loader = DataLoader(train, BATCH, sampler=sampler, num_workers=2, drop_last=True)
    model = Net(WIDTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    steps = EPOCHS * len(loader)
    step = 0
    for epoch in range(EPOCHS):
        model.train()
        for images, labels in loader:
            for group in optimizer.param_groups:
                group["lr"] = LR * min(1, (step + 1) / 10) * (1 + math.cos(math.pi * step / steps)) / 2
            loss = functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        model.eval()
        scores, labels = [], []
        with torch.no_grad():
            for images, target in DataLoader(held_out, BATCH, num_workers=2):
                scores.append(model(images).softmax(-1))
                labels.append(target)
        scores, labels = torch.cat(scores), torch.cat(labels)
        f1 = f1_score(labels, scores.argmax(-1), average="macro")
        auc = roc_auc_score(labels, scores, multi_class="ovr")
        print(f"epoch {epoch}: f1 {f1:.3f}, auc {auc:.3f}")


if __name__ == "__main__":
    main()
