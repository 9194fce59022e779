"""LightningModules and a DataModule as people write them for Lightning's Trainer; ``test_lightning.py`` trains them."""

# mypy: disable-error-code="attr-defined, union-attr"

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, random_split
from torchmetrics import Accuracy, ConfusionMatrix, MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassF1Score, MulticlassRecall

from workloads.adapters.lightning import LightningWorkload


class DigitsData(lightning.LightningDataModule):
    def __init__(self, batch_size: int = 24):
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage=None):
        inputs, targets = load_digits(return_X_y=True)
        digits = TensorDataset(torch.tensor(inputs, dtype=torch.float32) / 16, torch.tensor(targets))
        self.train, self.val, _ = random_split(digits, [96, 101, len(digits) - 197])

    def train_dataloader(self):
        return DataLoader(self.train, self.hparams.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.val, self.hparams.batch_size)


class Classifier(lightning.LightningModule):
    def __init__(self, width: int = 16, lr: float = 0.1):
        super().__init__()
        self.save_hyperparameters()
        self.layers = nn.ModuleList([nn.Linear(64, width), nn.Linear(width, width)])
        self.head = nn.Linear(width, 10)
        self.train_acc = Accuracy(task="multiclass", num_classes=10)
        self.val_acc = Accuracy(task="multiclass", num_classes=10)
        self.val_loss = MeanMetric()
        self.confusion = ConfusionMatrix(task="multiclass", num_classes=10)
        self.val_metrics = MetricCollection([MulticlassF1Score(10), MulticlassRecall(10)], prefix="val/")

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return self.head(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        loss = functional.cross_entropy(logits, y)
        self.train_acc(logits, y)
        self.log("train_acc", self.train_acc, on_step=False, on_epoch=True)
        self.log("lr", self.optimizers().param_groups[0]["lr"])
        self.log_dict({"train_loss": loss, "last_lr": self.lr_schedulers().get_last_lr()[0]}, prog_bar=True)
        return loss + 0 * batch_idx

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        loss = functional.cross_entropy(logits, y)
        self.val_loss(loss)
        self.val_acc.update(preds=logits, target=y)
        self.confusion.update(logits, y)
        self.val_metrics.update(logits, y)
        self.log("val_step_loss", loss)

    def on_validation_epoch_end(self):
        if self.trainer.sanity_checking:
            return
        self.log("val_acc", self.val_acc.compute(), prog_bar=True)
        self.log("val_loss", self.val_loss.compute())
        matrix = self.confusion.compute()
        recall = matrix.diag() / matrix.sum(1).clamp(min=1)
        self.log_dict({"worst_recall": recall.min(), "mean_recall": recall.mean().item()})
        self.log_dict(self.val_metrics.compute())
        self.log("lr", self.optimizers().param_groups[0]["lr"])
        self.log("epoch_of_evaluation", float(self.current_epoch))
        for metric in (self.val_acc, self.val_loss, self.confusion, self.val_metrics):
            metric.reset()

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


class LossByIndex(Classifier):
    """Trains on every second batch of an epoch alone, at half the rate that its scheduler says."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss * (batch_idx % 2) * self.optimizers().param_groups[0]["lr"]


class Digits(LightningWorkload):
    module, datamodule = Classifier, DigitsData


class DigitsByIndex(LightningWorkload):
    module, datamodule = LossByIndex, DigitsData
