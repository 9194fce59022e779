"""Classifies handwritten digits with a small residual network.

python before.py --epochs 20 --width 32
"""

import argparse
import math
import random

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import f1_score, roc_auc_score
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from scamp import Workload


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=20, help="steps of linear warm-up")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--label-smoothing", type=float, default=0.1)
    parser.add_argument("--patience", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default="best.pt")
    return parser.parse_args()


class DigitsDataset(Dataset):
    def __init__(self, images, labels, augment=False):
        self.images = images
        self.labels = labels
        self.augment = augment

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index]
        if self.augment:
            image = self.random_shift(image)
            if random.random() < 0.5:
                image = self.random_erase(image)
            image = image + np.random.normal(0, 0.05, image.shape).astype(np.float32)
        return torch.from_numpy(image)[None], int(self.labels[index])

    @staticmethod
    def random_shift(image):
        dx, dy = random.randint(-1, 1), random.randint(-1, 1)
        return np.roll(image, (dx, dy), (0, 1))

    @staticmethod
    def random_erase(image):
        image = image.copy()
        x, y = random.randint(0, 5), random.randint(0, 5)
        image[x : x + 3, y : y + 3] = 0
        return image


def get_datasets():
    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)
    x_train, x_val, y_train, y_val = train_test_split(
        images, digits.target, test_size=0.2, stratify=digits.target, random_state=0
    )
    return DigitsDataset(x_train, y_train, augment=True), DigitsDataset(x_val, y_val)


class Block(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.norm1 = nn.GroupNorm(4, width)
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.norm2 = nn.GroupNorm(4, width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(self.dropout(F.silu(self.norm2(h))))
        return x + h


class ResNet(nn.Module):
    def __init__(self, width=32, depth=3, dropout=0.1, num_classes=10):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.blocks = nn.ModuleList([Block(width, dropout) for _ in range(depth)])
        self.norm = nn.GroupNorm(4, width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        x = F.silu(self.norm(x)).mean((2, 3))
        return self.head(x)


def compute_metrics(logits, labels):
    probs = logits.float().softmax(-1).cpu().numpy()
    labels = labels.cpu().numpy()
    return {
        "loss": F.cross_entropy(logits.float(), torch.as_tensor(labels)).item(),
        "accuracy": (probs.argmax(-1) == labels).mean(),
        "f1": f1_score(labels, probs.argmax(-1), average="macro"),
        "auc": roc_auc_score(labels, probs, multi_class="ovr"),
    }


@torch.no_grad()
def validate(model, loader, device):
    model.eval()
    logits, labels = [], []
    for x, y in loader:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits.append(model(x.to(device)).cpu())
        labels.append(y)
    return compute_metrics(torch.cat(logits), torch.cat(labels))


class Digits(Workload):
    num_workers = 2

    def build_model(self):
        return ResNet(self.params["width"], self.params["depth"], self.params["dropout"])

    def dataset(self, split):
        return get_datasets()[split == "eval"]

    def optimizer(self, model):
        decay = [p for p in model.parameters() if p.ndim > 1]
        no_decay = {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0}
        return torch.optim.AdamW(
            [{"params": decay}, no_decay], self.params["lr"], weight_decay=self.params["weight_decay"]
        )

    def scheduler(self, optimizer, steps):
        warmup = self.params["warmup"]

        def lr_lambda(step):
            progress = (step - warmup) / max(1, steps - warmup)
            return (step + 1) / warmup if step < warmup else 0.5 * (1 + math.cos(math.pi * progress))

        return torch.optim.lr_scheduler.LambdaLR(optimizer, lr_lambda)

    def loss(self, model, batch):
        x, y = batch
        return F.cross_entropy(model(x), y, label_smoothing=self.params["label_smoothing"])

    def evaluate(self, model, batch):
        x, y = batch
        return {}, (model(x), y)

    def summarize(self, outputs):
        return compute_metrics(*outputs)


def main():
    args = get_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    train_set, val_set = get_datasets()
    train_loader = DataLoader(
        train_set, args.batch_size, shuffle=True, num_workers=args.workers, drop_last=True, persistent_workers=True
    )
    val_loader = DataLoader(val_set, 256)

    model = ResNet(args.width, args.depth, args.dropout).to(device)
    decay = [p for p in model.parameters() if p.ndim > 1]
    no_decay = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": args.weight_decay}, {"params": no_decay, "weight_decay": 0.0}], lr=args.lr
    )
    total_steps = args.epochs * len(train_loader)

    def lr_lambda(step):
        if step < args.warmup:
            return (step + 1) / args.warmup
        progress = (step - args.warmup) / max(1, total_steps - args.warmup)
        return 0.5 * (1 + math.cos(math.pi * progress))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_lambda)

    best_f1, bad_epochs = 0.0, 0
    for epoch in range(args.epochs):
        model.train()
        total_loss = 0.0
        for x, y in train_loader:
            x, y = x.to(device), y.to(device)
            with torch.autocast(device.type, dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), y, label_smoothing=args.label_smoothing)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            optimizer.step()
            scheduler.step()
            total_loss += loss.item()

        metrics = validate(model, val_loader, device)
        words = " ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        print(f"epoch {epoch + 1}: train_loss {total_loss / len(train_loader):.4f} {words}")

        if metrics["f1"] > best_f1:
            best_f1, bad_epochs = metrics["f1"], 0
            torch.save({"model": model.state_dict(), "args": vars(args), "metrics": metrics}, args.output)
        else:
            bad_epochs += 1
            if bad_epochs >= args.patience:
                print(f"no improvement for {args.patience} epochs, stopping")
                break
    print(f"best f1 {best_f1:.4f}")


if __name__ == "__main__":
    main()
