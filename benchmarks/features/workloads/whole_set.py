"""Metrics of the whole held-out set: objects with ``update`` and ``compute``, and ``summarize``."""

import torch
from base import CLASSES, Base
from data import OfDataset
from torch.nn import functional


class Counts:
    """Macro-averaged F1 from counts, as torchmetrics keeps them."""

    def __init__(self):
        self.found = torch.zeros(CLASSES, CLASSES)

    def update(self, preds, target):
        self.found += functional.one_hot(target * CLASSES + preds.argmax(-1), CLASSES**2).sum(0).view(CLASSES, CLASSES)

    def compute(self):
        right = self.found.diagonal()
        return (2 * right / (self.found.sum(0) + self.found.sum(1)).clamp(min=1)).mean()


def area(scores, positive):
    """Area under the ROC curve: the share of pairs in the right order."""
    pairs = scores[positive][:, None] - scores[~positive][None]
    return ((pairs > 0).double() + 0.5 * (pairs == 0)).mean()


class WholeSet(Base):
    def evaluate(self, model, batch):
        inputs, classes = batch
        logits = model(inputs)
        return {"loss": functional.cross_entropy(logits, classes, reduction="none")}, {
            "preds": logits,
            "target": classes,
            "rows": inputs[:, 0, 0],
        }

    def metrics(self):
        return {"f1": Counts()}

    def summarize(self, outputs):
        logits, classes = outputs["preds"], outputs["target"]
        assert torch.equal(outputs["rows"], self.inputs[50:, 0, 0]), "each sample once, and in order"
        order = torch.arange(len(logits)).double()
        return {
            "auc": area(logits[:, 0], classes == 0),
            "perplexity": functional.cross_entropy(logits, classes).exp(),
            "correlation": torch.corrcoef(torch.stack([order, logits[:, 1].double()]))[0, 1],
        }


class OfTorchmetrics(OfDataset):
    def evaluate(self, model, batch):
        return {}, (model(batch["inputs"]), batch["class"])

    def metrics(self):
        from torchmetrics import MetricCollection
        from torchmetrics.classification import MulticlassAUROC, MulticlassF1Score

        return MetricCollection({"f1": MulticlassF1Score(CLASSES), "auc": MulticlassAUROC(CLASSES)})
