"""A LightningModule and its data as they are, and the four lines with which ScaMP trains them."""

from __future__ import annotations

from typing import Any

import lightning
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassF1Score

from scamp import LightningWorkload


class Network(lightning.LightningModule):
    def __init__(self, width: int = 64, lr: float = 1e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layers = nn.ModuleList([nn.Linear(64, width), nn.Linear(width, width), nn.Linear(width, width)])
        self.head = nn.Linear(width, 10)
        self.val_f1 = MulticlassF1Score(10)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return self.head(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        inputs, targets = batch
        return functional.cross_entropy(self(inputs), targets)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        inputs, targets = batch
        logits = self(inputs)
        self.val_f1(logits, targets)
        self.log("val_f1", self.val_f1)
        self.log("val_loss", functional.cross_entropy(logits, targets))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


class Digits(lightning.LightningDataModule):
    def setup(self, stage: str) -> None:
        inputs, targets = load_digits(return_X_y=True)
        inputs, targets = torch.tensor(inputs, dtype=torch.float32) / 16, torch.tensor(targets)
        self.train, self.val = (
            TensorDataset(inputs[:1500], targets[:1500]),
            TensorDataset(inputs[1500:], targets[1500:]),
        )

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.train, batch_size=32, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.val, batch_size=64)


class LightningDigits(LightningWorkload):
    module, datamodule = Network, Digits
