"""Layers of torch with habits of their own, and parts of models that are compiled, checkpointed or changed in place."""

import torch
from torch import nn
from torch.nn import functional

from .points import WIDTH, WORDS, Block, Points, Stack, Texts


class TextNet(nn.Module):
    """Words [n, 6] → logits [n, 6, 11]."""

    def __init__(self, *layers):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words):
        x = self.words(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class LstmBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, 8, batch_first=True, bidirectional=True)

    def forward(self, x):
        return x + self.lstm(x)[0]


class LstmBlocks(Texts):
    """Bidirectional LSTMs, one in each block.

    From https://github.com/pytorch/pytorch/pull/24828 (recurrent layers whose weights have moved in memory).
    """

    def build_model(self):
        return TextNet(LstmBlock(), LstmBlock())


class AttentionBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x):
        causal = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        y = self.norm(x)
        return x + self.attention(y, y, y, attn_mask=causal, need_weights=False, is_causal=True)[0]


class AttentionBlocks(Texts):
    """torch's attention, which uses the weight of its output layer without calling that layer.

    From https://github.com/pytorch/pytorch/issues/26698 (MultiheadAttention and DDP).
    """

    def build_model(self):
        return TextNet(AttentionBlock(), AttentionBlock())


class SparseBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.values = nn.Embedding(WORDS, WIDTH, sparse=True)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, words):
        return x + self.linear(x).tanh() + self.values(words)


class SparseEmbedding(Texts):
    """Embeddings with sparse gradients, in every block and before them.

    From https://github.com/pytorch/pytorch/issues/80496 (DDP and sparse gradients).
    """

    class Net(TextNet):
        def forward(self, words):
            x = self.words(words)
            for layer in self.layers:
                x = layer(x, words)
            return self.head(x)

    def build_model(self):
        model = self.Net(SparseBlock(), SparseBlock())
        model.words = nn.Embedding(WORDS, WIDTH, sparse=True)
        return model

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.05)


class InPlaceBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH))

    def forward(self, x):
        y = self.layers(x)
        y += x
        return y


class InPlaceActivations(Points):
    """Activations and sums that change their input in place, inside of blocks and on what blocks return.

    From https://github.com/pytorch/pytorch/issues/61519 (in-place activations and backward hooks).
    """

    class Net(Stack):
        def forward(self, x):
            x = self.first(x)
            for block in self.blocks:
                x = block(x)
                x.add_(0.1)
            return self.head(x)

    def build_model(self):
        return self.Net(InPlaceBlock(), InPlaceBlock())


class ViewBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x):
        return self.linear(x.tanh()).view(-1, 2, WIDTH)[:, 0]


class ViewsOfOutputs(Points):
    """Blocks return a view, to which the model adds in place.

    From https://github.com/pytorch/pytorch/issues/181832 (FSDP2 loses its hook on such a view).
    """

    class Net(Stack):
        def forward(self, x):
            x = self.first(x)
            for block in self.blocks:
                y = block(x)
                y += x
                x = y
            return self.head(x)

    def build_model(self):
        return self.Net(ViewBlock(), ViewBlock())


def activate(x):
    return functional.gelu(x) * torch.sigmoid(1.7 * x)


class CompiledBlock(Block):
    def __init__(self):
        super().__init__()
        self.activate = torch.compile(activate, backend="aot_eager", dynamic=True)

    def forward(self, x):
        return x + self.activate(self.linear(x))


class CompiledPart(Points):
    """A function inside each block is compiled.

    From https://github.com/pytorch/pytorch/issues/97436 (torch.compile and gradient checkpointing).
    """

    def build_model(self):
        return Stack(CompiledBlock(), CompiledBlock())
