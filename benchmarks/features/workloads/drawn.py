"""Combinations of ways to give data and to measure, chosen by parameters that the benchmark draws."""

import torch
from base import Base, samples
from data import NUM, Noisy, Stream, Vectors
from torch.nn import functional
from whole_set import Counts, area


class Drawn(Noisy):
    def dataset(self, split):
        if self.params["source"] == "stream":
            return Stream(split)
        return Vectors(split, noisy=self.params["noisy"])

    def augment(self, sample, generator):
        if not self.params["augments"]:
            return sample
        return {**sample, "inputs": sample["inputs"] + 0.3 * torch.randn((), generator=generator)}

    def evaluate(self, model, batch):
        logits = model(batch["inputs"])
        means = {"loss": functional.cross_entropy(logits, batch["class"], reduction="none")}
        return means, {"preds": logits, "target": batch["class"]}

    def metrics(self):
        return {"f1": Counts()}

    def summarize(self, outputs):
        assert len(outputs["target"]) == NUM["eval"][1] - NUM["eval"][0]
        return {"auc": area(outputs["preds"][:, 1], outputs["target"] == 1)}


class DrawnInOrder(Drawn):
    """An epoch of any length, with or without replacement."""

    def order(self, epoch, generator):
        length = self.params["epoch"]
        if length > 50:
            return torch.randint(50, (length,), generator=generator)
        return torch.randperm(50, generator=generator)[:length]


class DrawnByIndex(Base):
    """Batches by index that draw random numbers, in an order of their own."""

    def train_batch(self, indices):
        inputs, classes = super().train_batch(indices)
        return inputs + 0.3 * torch.randn(inputs.shape), classes

    def eval_batch(self, indices):
        return tuple(part[50 + indices] for part in samples(71))

    def order(self, epoch, generator):
        return torch.randperm(50, generator=generator)[: min(50, self.params["epoch"])]
