"""A ranking model whose embedding tables ranks may divide, as in DLRM."""

import torch
from torch import nn
from torch.nn import functional

from scamp import Divided, SplitSGD, Workload

SIZES = (300, 40, 7)


class Ranking(nn.Module):
    divided = Divided(("tables", "words", "tags", "mixed"))

    def __init__(self, width, rows, sparse):
        super().__init__()
        self.tables = nn.ModuleList(
            nn.Embedding(size, width, padding_idx=0 if size < 10 else None, sparse=sparse) for size in SIZES
        )
        self.words = nn.EmbeddingBag(rows, 2 * width, sparse=sparse)
        self.tags = nn.EmbeddingBag(200, width, mode="sum", sparse=sparse)
        self.weights = nn.Parameter(torch.linspace(0.5, 1.5, 200))
        self.bottom = nn.Sequential(nn.Linear(5, 24), nn.ReLU(), nn.Linear(24, width))
        self.top = nn.Sequential(nn.Linear((3 + len(SIZES)) * width, 32), nn.Tanh(), nn.Linear(32, 1))
        self.mixed = nn.Linear(2 * width, width)

    def forward(self, numbers, categories, text):
        vectors = [self.bottom(numbers), *(table(categories[:, i]).float() for i, table in enumerate(self.tables))]
        starts = torch.arange(0, text.numel(), text.shape[1])
        weights = self.weights[text.flatten()].to(self.tags.weight.dtype)
        tags = self.tags(text.flatten(), starts, per_sample_weights=weights).float()
        return self.top(torch.cat([*vectors, self.mixed(self.words(text).float()), tags], 1))


class Clicks(Workload):
    num_train, num_eval = 50, 21

    def __init__(self, params):
        super().__init__(params)
        draws = torch.Generator().manual_seed(0)
        self.numbers = torch.randn(71, 5, generator=draws)
        self.categories = torch.stack([torch.randint(size, (71,), generator=draws) for size in SIZES], 1)
        self.text = torch.randint(200, (71, 6), generator=draws)
        self.clicks = (self.numbers.sum(1) + self.categories[:, 2] > 3).float()

    def build_model(self):
        model = Ranking(
            *(self.params.get(name, value) for name, value in (("width", 16), ("rows", 200), ("sparse", False)))
        )
        if self.params.get("optimizer") == "SplitSGD":
            for tables in (model.tables, model.words, model.tags):
                tables.bfloat16()
        return model

    def train_batch(self, indices):
        return tuple(column[indices] for column in (self.numbers, self.categories, self.text, self.clicks))

    def eval_batch(self, indices):
        return self.train_batch(50 + indices)

    def loss(self, model, batch):
        return functional.binary_cross_entropy_with_logits(model(*batch[:3]).squeeze(1), batch[3])

    def evaluate(self, model, batch):
        logits = model(*batch[:3]).squeeze(1)
        return {"loss": functional.binary_cross_entropy_with_logits(logits, batch[3], reduction="none")}

    def blocks(self, model):
        return list(model.tables)

    def optimizer(self, model):
        lr = self.params.get("lr", 3e-3)
        if "optimizer" not in self.params:
            return torch.optim.AdamW(model.parameters(), lr)
        tables = [*model.tables.parameters(), model.words.weight, model.tags.weight]
        others = [each for each in model.parameters() if not any(each is table for table in tables)]
        kind = SplitSGD if self.params["optimizer"] == "SplitSGD" else getattr(torch.optim, self.params["optimizer"])
        return [kind(tables, lr), torch.optim.AdamW(others, lr)]
