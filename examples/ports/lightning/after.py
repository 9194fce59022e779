"""Predicts the progression of diabetes from ten measurements, with Lightning.

python before.py --max-epochs 50 --hidden 64
"""

from argparse import ArgumentParser

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanAbsoluteError, PearsonCorrCoef, R2Score

from scamp import LightningWorkload


class DiabetesData(L.LightningDataModule):
    def __init__(self, batch_size: int = 32, num_workers: int = 0):
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage=None):
        x, y = load_diabetes(return_X_y=True)
        x_train, x_val, y_train, y_val = train_test_split(x, y, test_size=0.25, random_state=0)
        x_scaler = StandardScaler().fit(x_train)
        y_scaler = StandardScaler().fit(y_train[:, None])
        self.train = self.make_set(x_scaler.transform(x_train), y_scaler.transform(y_train[:, None]))
        self.val = self.make_set(x_scaler.transform(x_val), y_scaler.transform(y_val[:, None]))

    @staticmethod
    def make_set(x, y):
        return TensorDataset(torch.tensor(x, dtype=torch.float32), torch.tensor(y[:, 0], dtype=torch.float32))

    def train_dataloader(self):
        return DataLoader(
            self.train, batch_size=self.hparams.batch_size, shuffle=True, num_workers=self.hparams.num_workers
        )

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=128, num_workers=self.hparams.num_workers)


class ResidualBlock(nn.Module):
    def __init__(self, hidden, dropout):
        super().__init__()
        self.net = nn.Sequential(
            nn.LayerNorm(hidden), nn.Linear(hidden, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, hidden)
        )

    def forward(self, x):
        return x + self.net(x)


class Regressor(L.LightningModule):
    def __init__(
        self,
        hidden: int = 64,
        depth: int = 2,
        dropout: float = 0.2,
        lr: float = 1e-3,
        weight_decay: float = 1e-2,
        scheduler: str = "plateau",
    ):
        super().__init__()
        self.save_hyperparameters()
        self.embed = nn.Linear(10, hidden)
        self.blocks = nn.ModuleList([ResidualBlock(hidden, dropout) for _ in range(depth)])
        self.head = nn.Linear(hidden, 1)
        self.val_mae = MeanAbsoluteError()
        self.val_r2 = R2Score()
        self.val_corr = PearsonCorrCoef()

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x).squeeze(-1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.huber_loss(self(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        pred = self(x)
        self.val_mae(pred, y)
        self.val_r2(pred, y)
        self.val_corr(pred, y)
        self.log("val_loss", F.huber_loss(pred, y), prog_bar=True)
        self.log("val_mae", self.val_mae)
        self.log("val_r2", self.val_r2)
        self.log("val_corr", self.val_corr)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=self.hparams.weight_decay)
        if self.hparams.scheduler == "plateau":
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=3)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss"}}
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=self.hparams.lr, total_steps=self.trainer.estimated_stepping_batches
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Diabetes(LightningWorkload):
    module, datamodule = Regressor, DiabetesData


def main():
    parser = ArgumentParser()
    parser.add_argument("--max-epochs", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--scheduler", choices=["plateau", "onecycle"], default="plateau")
    args = parser.parse_args()

    L.seed_everything(0)
    data = DiabetesData(args.batch_size)
    model = Regressor(args.hidden, args.depth, args.dropout, args.lr, scheduler=args.scheduler)
    trainer = L.Trainer(
        max_epochs=args.max_epochs,
        gradient_clip_val=1.0,
        callbacks=[
            ModelCheckpoint(monitor="val_loss", mode="min"),
            EarlyStopping(monitor="val_loss", patience=8),
            LearningRateMonitor(),
        ],
        logger=CSVLogger("logs"),
    )
    trainer.fit(model, data)
    print(trainer.callback_metrics)


if __name__ == "__main__":
    main()
