"""Evoformer blocks with recycling, which find the contacts of a chain from an alignment of its relatives.

Jumper et al., "Highly accurate protein structure prediction with AlphaFold", Nature 2021, small: without triangle
attention, structure module and templates. The alignments are generated: some pairs of positions are in contact, and
hold complementary letters in nine of ten relatives; all other letters are random. Only letters that change together
give a contact away. The study beside it is ``evoformer.yaml``.
"""

import torch
from torch import nn
from torch.nn import functional

from scamp import Split, Workload

LETTERS = 4
LENGTH, RELATIVES = 12, 8
NUM_CONTACTS = 4
SHORTEST = 3
"""Positions from one to the next that may be in contact with it."""
KEPT = 0.9
NUM_TRAIN, NUM_EVAL = 4096, 128


class Contacts(Workload):
    """Metrics: ``precision``, the share of the four likeliest pairs that are contacts (by chance 0.09), and ``loss``.

    Parameters, with defaults: ``depth`` 2, ``width`` 32 (of the alignment), ``pair_width`` 16, ``heads`` 4,
    ``recycles`` 2 (passes before the last one; they have no gradients), ``lr`` 2e-3, ``batch`` 16.
    """

    default_batch = 16
    num_train, num_eval = NUM_TRAIN, NUM_EVAL

    def __init__(self, params):
        super().__init__(params)
        sizes = {"depth": 2, "width": 32, "pair_width": 16, "heads": 4, "recycles": 2}
        self.sizes = {name: params.get(name, size) for name, size in sizes.items()}
        if self.sizes["width"] % self.sizes["heads"]:
            raise ValueError(f"width ({self.sizes['width']}) must be a multiple of heads ({self.sizes['heads']})")

    def build_model(self):
        return Evoformer(**self.sizes)

    def train_batch(self, indices):
        """Letters of the relatives [n, relatives, length], and contacts (0 or 1) [n, length, length]."""
        families = [_family(index) for index in indices.tolist()]
        return tuple(torch.stack(each) for each in zip(*families, strict=True))

    def eval_batch(self, indices):
        return self.train_batch(indices + NUM_TRAIN)

    def loss(self, model, batch):
        return self._losses(model(batch[0]), batch[1]).mean()

    def evaluate(self, model, batch):
        logits = model(batch[0])
        likeliest = logits[:, *_possible()].topk(NUM_CONTACTS).indices
        found = batch[1][:, *_possible()].gather(1, likeliest)
        return {"precision": found.mean(1), "loss": self._losses(logits, batch[1])}

    def optimizer(self, model):
        return torch.optim.AdamW(model.parameters(), lr=self.params.get("lr", 2e-3), weight_decay=0.01)

    def scheduler(self, optimizer, steps):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, self.params.get("lr", 2e-3), max(steps, 2))

    def _losses(self, logits, contacts):
        pairs = logits[:, *_possible()], contacts[:, *_possible()]
        return functional.binary_cross_entropy_with_logits(*pairs, reduction="none").mean(1)


class Evoformer(nn.Module):
    """Letters [n, relatives, length] → logits of contacts [n, length, length]."""

    def __init__(self, depth, width, pair_width, heads, recycles):
        super().__init__()
        self.recycles, self.width, self.pair_width = recycles, width, pair_width
        self.letters = nn.Embedding(LETTERS, width)
        self.left, self.right = nn.Embedding(LETTERS, pair_width), nn.Embedding(LETTERS, pair_width)
        self.distances = nn.Embedding(2 * LENGTH - 1, pair_width)
        for embedding in (self.left, self.right, self.distances):
            nn.init.normal_(embedding.weight, std=0.1)
        self.recycled_first, self.recycled_pairs = nn.LayerNorm(width), nn.LayerNorm(pair_width)
        self.blocks = nn.ModuleList(EvoformerBlock(width, pair_width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(pair_width)
        self.head = nn.Linear(pair_width, 1)

    def forward(self, letters):
        n = len(letters)
        first = self.letters.weight.new_zeros(n, LENGTH, self.width)
        pairs = self.letters.weight.new_zeros(n, LENGTH, LENGTH, self.pair_width)
        with torch.no_grad():
            for _ in range(self.recycles):
                first, pairs = self.refined(letters, first, pairs)
        _, pairs = self.refined(letters, first, pairs)
        return self.head(self.norm(pairs + pairs.transpose(1, 2))).squeeze(-1)

    def refined(self, letters, first, pairs):
        """The first row of the alignment and the pairs after all blocks, from those of the pass before."""
        alignment = self.letters(letters)
        alignment = torch.cat([alignment[:, :1] + self.recycled_first(first)[:, None], alignment[:, 1:]], 1)
        positions = torch.arange(LENGTH, device=letters.device)
        distances = self.distances(positions[:, None] - positions[None, :] + LENGTH - 1)
        own = self.left(letters[:, 0])[:, :, None] + self.right(letters[:, 0])[:, None, :]
        pairs = own + distances + self.recycled_pairs(pairs)
        for block in self.blocks:
            alignment, pairs = block(alignment, pairs)
        return alignment[:, 0], pairs


class EvoformerBlock(nn.Module):
    """Updates the alignment [n, relatives, length, width] and the pairs [n, length, length, pair width]."""

    def __init__(self, width, pair_width, heads):
        super().__init__()
        self.split = Split(
            columns=("rows.qkvg", "rows.bias", "columns.qkvg", "transition.up", "pair_transition.up"),
            rows=("rows.out", "columns.out", "transition.down", "pair_transition.down"),
            norms=(),
            most_parts=heads,
        )
        self.rows = GatedAttention(width, heads, pair_width)
        self.columns = GatedAttention(width, heads)
        self.transition = Transition(width)
        self.outer = OuterMean(width, pair_width)
        self.outgoing, self.incoming = Triangle(pair_width, "nikc,njkc->nijc"), Triangle(pair_width, "nkic,nkjc->nijc")
        self.pair_transition = Transition(pair_width)

    def forward(self, alignment, pairs):
        alignment = alignment + self.rows(alignment, pairs)
        alignment = alignment + self.columns(alignment.transpose(1, 2)).transpose(1, 2)
        alignment = alignment + self.transition(alignment)
        pairs = pairs + self.outer(alignment)
        pairs = pairs + self.outgoing(pairs)
        pairs = pairs + self.incoming(pairs)
        return alignment, pairs + self.pair_transition(pairs)


class GatedAttention(nn.Module):
    """Self-attention along dimension 2 of [n, a, b, width], with a gate, and with a bias computed from the pairs."""

    def __init__(self, width, heads, pair_width=0):
        super().__init__()
        self.head = width // heads
        self.norm = nn.LayerNorm(width)
        self.qkvg = nn.Linear(width, 4 * width)
        self.out = nn.Linear(width, width)
        self.pair_norm = nn.LayerNorm(pair_width) if pair_width else None
        self.bias = nn.Linear(pair_width, heads, bias=False) if pair_width else None

    def forward(self, x, pairs=None):
        # Consecutive rows of the weight are whole heads, because a rank may hold only some heads.
        parts = self.qkvg(self.norm(x)).unflatten(-1, (-1, 4, self.head)).permute(4, 0, 1, 3, 2, 5)
        q, k, v, gate = parts  # each [n, a, heads, b, head]
        scores = q @ k.transpose(-1, -2) * self.head**-0.5
        if pairs is not None:
            scores = scores + self.bias(self.pair_norm(pairs)).permute(0, 3, 1, 2)[:, None]
        attended = gate.sigmoid() * (scores.softmax(-1) @ v)
        return self.out(attended.transpose(2, 3).flatten(3))


class Transition(nn.Module):
    """Layer norm, then two linear layers with a ReLU between them."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return self.down(self.up(self.norm(x)).relu())


class OuterMean(nn.Module):
    """Outer products of two positions, averaged over the relatives: [n, s, l, width] → [n, l, l, pair width]."""

    def __init__(self, width, pair_width, hidden=8):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.left, self.right = nn.Linear(width, hidden), nn.Linear(width, hidden)
        self.out = nn.Linear(hidden**2, pair_width)

    def forward(self, alignment):
        x = self.norm(alignment)
        products = torch.einsum("nsic,nsjd->nijcd", self.left(x), self.right(x)) / x.shape[1]
        return self.out(products.flatten(3))


class Triangle(nn.Module):
    """Triangle multiplication: the pair (i, j) hears of (i, k) and (j, k), or of (k, i) and (k, j), for all k."""

    def __init__(self, width, sum_over):
        super().__init__()
        self.sum_over = sum_over
        self.norm, self.made_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.left, self.right = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.gate, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, pairs):
        x = self.norm(pairs)
        left, right = (functional.glu(each(x)) for each in (self.left, self.right))
        made = self.made_norm(torch.einsum(self.sum_over, left, right))
        return self.gate(x).sigmoid() * self.out(made)


def _possible():
    """Rows and columns of the pairs that may be in contact, above the diagonal."""
    return torch.triu_indices(LENGTH, LENGTH, SHORTEST).unbind()


def _family(index):
    """The letters and the contacts of family ``index``."""
    numbers = torch.Generator().manual_seed(index)
    rows, columns = _possible()
    contacts, free = torch.zeros(LENGTH, LENGTH), set(range(LENGTH))
    letters = torch.randint(LETTERS, (RELATIVES, LENGTH), generator=numbers)
    for number in torch.randperm(len(rows), generator=numbers).tolist():
        i, j = int(rows[number]), int(columns[number])
        if {i, j} <= free and contacts.sum() < 2 * NUM_CONTACTS:
            free -= {i, j}
            contacts[i, j] = contacts[j, i] = 1
            kept = torch.rand(RELATIVES, generator=numbers) < KEPT
            letters[:, j] = torch.where(kept, LETTERS - 1 - letters[:, i], letters[:, j])
    return letters, contacts
