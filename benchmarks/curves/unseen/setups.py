"""How training is set up: marks on parameters, optimizers, the default dtype, initialisation, padded batches."""

from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional

from .base import LENGTH, TOKENS, WIDTH, Mixer, Sentences, Tower, Vectors


class Lookahead(torch.optim.Optimizer):
    """Wraps an optimizer and has the same groups and states. Every second step goes half way from the slow weights."""

    def __init__(self, optimizer):
        self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
        self.optimizer = optimizer
        self.defaults, self.param_groups, self.state = optimizer.defaults, optimizer.param_groups, optimizer.state
        for group in self.param_groups:
            group["lookahead_step"] = 0

    @torch.no_grad()
    def step(self, closure=None):
        loss = self.optimizer.step(closure)
        for group in self.param_groups:
            group["lookahead_step"] += 1
            if group["lookahead_step"] % 2 == 0:
                for fast in group["params"]:
                    if fast.grad is not None:
                        state = self.optimizer.state[fast]
                        if "slow" not in state:
                            state["slow"] = fast.clone()
                        state["slow"].add_(fast - state["slow"], alpha=0.5)
                        fast.copy_(state["slow"])
        return loss

    def state_dict(self):
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict):
        self.optimizer.load_state_dict(state_dict)
        self.param_groups, self.state = self.optimizer.param_groups, self.optimizer.state


class WrappedOptimizer(Vectors):
    """An optimizer that wraps another one, shares its groups and states, and adds slow weights to them.

    From https://github.com/huggingface/pytorch-image-models (timm/optim/lookahead.py).
    """

    def build_model(self):
        return Tower(*(Mixer() for _ in range(2)))

    def optimizer(self, model):
        return Lookahead(torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.1))


class DoubleByDefault(Vectors):
    """The constructor makes fp64 torch's default type, so that data, weights and states are all in it.

    From https://github.com/ACEsuit/mace (tools.set_default_dtype).
    """

    def __init__(self, params):
        torch.set_default_dtype(torch.float64)
        super().__init__(params)

    def build_model(self):
        return Tower(*(Mixer() for _ in range(2)))


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.scores = nn.Linear(WIDTH, 1)
        self.values = nn.Linear(WIDTH, WIDTH)
        self.mix = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x, is_padding):
        normed = self.norm(x)
        weights = self.scores(normed).masked_fill(is_padding.unsqueeze(-1), -1e9).softmax(1)
        summary = (weights * self.values(normed)).sum(1, keepdim=True).expand_as(x)
        return x + self.mix(torch.cat([normed, summary], -1)).tanh()


class MaskedReader(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(TOKENS + 1, WIDTH, padding_idx=TOKENS)
        self.layers = nn.ModuleList(Masked() for _ in range(2))
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens):
        is_padding = tokens == TOKENS
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x, is_padding)
        return self.head(x)


class PaddedToLongest(Sentences):
    """Sentences of 2 to 10 tokens; each batch is as long as its longest one, so that ranks see different shapes.

    From https://github.com/huggingface/transformers/pull/34191 (batches of different lengths and what they average).
    """

    def generate(self, num, numbers):
        tokens, tags = super().generate(num, numbers)
        lengths = torch.randint(2, LENGTH + 1, (num, 1), generator=numbers)
        is_padding = torch.arange(LENGTH) >= lengths
        return tokens.masked_fill(is_padding, TOKENS), tags.masked_fill(is_padding, -100)

    def build_model(self):
        return MaskedReader()

    def train_batch(self, indices):
        tokens, tags = super().train_batch(indices)
        longest = int((tags >= 0).sum(1).max())
        return tokens[:, :longest], tags[:, :longest]

    def losses(self, model, batch):
        tokens, tags = batch
        losses = functional.cross_entropy(model(tokens).transpose(1, 2), tags, reduction="none", ignore_index=-100)
        return losses.sum(1) / (tags >= 0).sum(1)
