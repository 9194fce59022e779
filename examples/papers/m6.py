"""A small M6: writes the caption of an image, by layers of experts (Lin et al., 2021, arXiv:2103.00823).

Patches of the image and words of the caption are one sequence, in whose layers each position goes through two of many
experts. As in the example of Whale (Jia et al., 2022), three lines of hints say how it is spread: replicas that divide
what can be divided, the experts and the head over the vocabulary. The images are handwritten digits of scikit-learn,
two beside each other. A caption names both and says which one is larger, and by how much. The study beside it is
``m6.yaml``.
"""

from functools import cache

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

from scamp import Divided, Experts, Workload, hints

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
WORDS = ("<start>", *DIGITS, "and", "first", "second", "neither", "larger", "by")
NUM_PATCHES, PATCH = 16, 8  # pieces of 2 × 4 pixels of two images of 8 × 8


class Captions(Workload):
    """Metrics: ``gain`` (``accuracy`` of words less that of the most frequent one in each place) and ``loss``.

    Parameters, with defaults: ``experts`` 8, ``capacity`` 1.25, ``width`` 64, ``layers`` 2, ``devices`` (the number of
    replicas that divide experts; 0: the planner decides), ``lr`` 4e-3, ``batch`` 64.
    """

    num_train, num_eval = 8000, 1000
    default_batch = 64

    def build_model(self):
        params = {"experts": 8, "capacity": 1.25, "width": 64, "layers": 2, "devices": 0} | self.params
        model = M6(params["width"], params["layers"], params["experts"], params["capacity"])
        if devices := params["devices"]:
            hints.replica(model, degree=devices)
            for block in model.blocks:
                hints.split(block.experts, degree=devices)
        return model

    def train_batch(self, indices):
        """Patches [n, 16, 8] and captions (numbers of words) [n, 8]."""
        images, captions = pairs(self.num_train + self.num_eval)
        return images[indices], captions[indices]

    def eval_batch(self, indices):
        return self.train_batch(self.num_train + indices)

    def loss(self, model, batch):
        patches, words = batch
        logits, imbalance = model(patches, words[:, :-1])
        return functional.cross_entropy(logits.transpose(1, 2), words[:, 1:]) + 0.01 * imbalance

    def evaluate(self, model, batch):
        patches, words = batch
        logits, _ = model(patches, words[:, :-1])
        losses = functional.cross_entropy(logits.transpose(1, 2), words[:, 1:], reduction="none")
        right = (logits.argmax(-1) == words[:, 1:]).float().mean(1)
        usual = pairs(self.num_train + self.num_eval)[1][: self.num_train, 1:].mode(0).values
        return {"loss": losses.mean(1), "accuracy": right, "gain": right - (usual == words[:, 1:]).float().mean(1)}

    def blocks(self, model):
        return list(model.blocks)

    def optimizer(self, model):
        return torch.optim.AdamW(model.parameters(), lr=self.params.get("lr", 4e-3), weight_decay=0.01)


class M6(nn.Module):
    """Logits of words [n, length, words], and how unevenly experts are chosen, a mean over the layers."""

    divided = Divided(("head",))

    def __init__(self, width, layers, experts, capacity):
        super().__init__()
        self.patches, self.words = nn.Linear(PATCH, width), nn.Embedding(len(WORDS), width)
        self.positions = nn.Parameter(0.1 * torch.randn(NUM_PATCHES + 7, width))
        self.blocks = nn.ModuleList(Block(width, experts, capacity) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 32)  # more than words, so that ranks can divide it

    def forward(self, patches, words):
        x, imbalance = torch.cat([self.patches(patches), self.words(words)], 1) + self.positions, 0.0
        for block in self.blocks:
            x, of_block = block(x)
            imbalance = imbalance + of_block / len(self.blocks)
        return self.head(self.norm(x[:, NUM_PATCHES:])), imbalance


class Block(nn.Module):
    """Attention in which patches see patches and words what is before them, and a layer of experts."""

    def __init__(self, width, experts, capacity):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = Experts(lambda: feed_forward(width), experts, capacity)

    def forward(self, x):
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        sees = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        sees[:NUM_PATCHES, :NUM_PATCHES] = True
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=sees)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        tokens = self.norms[1](x)
        probabilities = self.router(tokens).softmax(-1)
        weights, choices = probabilities.topk(2)
        return x + self.experts(tokens, choices, weights), self.experts.balance_loss(probabilities, choices)


def feed_forward(width):
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


@cache
def pairs(num):
    """Images of two digits, drawn by a seed, as patches [num, 16, 8], and their captions [num, 8]."""
    digits = load_digits()
    draws = torch.Generator().manual_seed(0)
    chosen = torch.randint(len(digits.target), (num, 2), generator=draws)
    images = torch.from_numpy(digits.images).float()[chosen] / 16
    patches = images.reshape(num, 2, 4, 2, 2, 4).transpose(3, 4).reshape(num, NUM_PATCHES, PATCH)
    numbers = torch.from_numpy(digits.target)[chosen]
    captions = [
        ["<start>", DIGITS[a], "and", DIGITS[b], larger(a, b), "larger", "by", DIGITS[abs(a - b)]]
        for a, b in numbers.tolist()
    ]
    return patches, torch.tensor([[WORDS.index(word) for word in caption] for caption in captions])


def larger(a, b):
    return "neither" if a == b else "first" if a > b else "second"
