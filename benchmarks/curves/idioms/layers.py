"""Layers of torch with habits of their own, and parts of models that are compiled, checkpointed or changed in place."""

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from .points import LENGTH, WIDTH, WORDS, Points, Stack, Texts


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


class GruBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(WIDTH, WIDTH, num_layers=2)
        self.start = nn.Parameter(torch.zeros(2, 1, WIDTH))

    def forward(self, x):
        lengths = torch.full((len(x),), x.shape[1] - 1)
        packed = pack_padded_sequence(x, lengths, batch_first=True)
        states, _ = self.gru(packed, self.start.expand(-1, len(x), -1).contiguous())
        return x + pad_packed_sequence(states, batch_first=True, total_length=x.shape[1])[0]


class PackedGru(Texts):
    """GRUs of two layers on packed sequences, time first, with a first state that is learned.

    From https://github.com/pytorch/pytorch/issues/2460 (packed sequences and the weights of recurrent layers).
    """

    def build_model(self):
        return TextNet(GruBlock(), GruBlock())


class CellBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.RNNCell(WIDTH, WIDTH)

    def forward(self, x):
        state, states = None, []
        for moment in x.unbind(1):
            state = self.cell(moment, state)
            states.append(state)
        return x + torch.stack(states, 1)


class RecurrentCells(Texts):
    """A cell that a Python loop calls once for each word: one module, six calls in a pass.

    From https://github.com/facebookresearch/fairscale/issues/777 (several passes through a checkpointed module).
    """

    def build_model(self):
        return TextNet(CellBlock(), CellBlock())


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


class EncoderLayers(Texts):
    """torch's transformer encoder, whose layers take another path in evaluation.

    From https://github.com/pytorch/pytorch/issues/26698 (MultiheadAttention and DDP).
    """

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(WORDS, WIDTH, padding_idx=0)
            layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.0, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(WIDTH, WORDS)

        def forward(self, words):
            return self.head(self.encoder(self.words(words), src_key_padding_mask=words == 0))

    def build_model(self):
        return self.Net()


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


class BagBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.bags = nn.EmbeddingBag(WORDS, WIDTH, mode="sum", include_last_offset=True)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, words, offsets, weights):
        return x + self.linear(x + self.bags(words, offsets, per_sample_weights=weights)).tanh()


class EmbeddingBags(Texts):
    """Bags of words by offsets, with weights that are parameters too; they predict how often the first word comes.

    From https://github.com/deepspeedai/DeepSpeed/pull/1484 (gradients of Embedding and EmbeddingBag).
    """

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.Parameter(torch.ones(WORDS))
            self.start = nn.Parameter(torch.zeros(WIDTH))
            self.blocks = nn.ModuleList(BagBlock() for _ in range(2))
            self.head = nn.Linear(WIDTH, 1)

        def forward(self, words):
            offsets = torch.arange(len(words) + 1, device=words.device) * LENGTH
            x, words = self.start.expand(len(words), WIDTH), words.flatten()
            for block in self.blocks:
                x = block(x, words, offsets, self.weights[words])
            return self.head(x)[:, 0]

    def build_model(self):
        return self.Net()

    def losses(self, model, batch):
        words, _ = batch
        return (model(words) - (words == words[:, :1]).sum(1)).square() / 20


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


class CompiledBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.activate = torch.compile(activate, backend="aot_eager", dynamic=True)

    def forward(self, x):
        return x + self.activate(self.linear(x))


class CompiledPart(Points):
    """A function inside each block is compiled.

    From https://github.com/pytorch/pytorch/issues/97436 (torch.compile and gradient checkpointing).
    """

    def build_model(self):
        return Stack(CompiledBlock(), CompiledBlock())


class CheckpointedBlock(nn.Module):
    def __init__(self, use_reentrant):
        super().__init__()
        self.use_reentrant = use_reentrant
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def feed_forward(self, x):
        return self.down(self.up(x).tanh())

    def forward(self, x):
        return x + checkpoint(self.feed_forward, x, use_reentrant=self.use_reentrant)


class CheckpointedParts(Points):
    """Blocks that checkpoint a part of themselves, without re-entrant autograd.

    From https://github.com/pytorch/pytorch/pull/89781 (FSDP with checkpointed submodules).
    """

    def build_model(self):
        return Stack(*(CheckpointedBlock(use_reentrant=False) for _ in range(2)))


class ReentrantParts(Points):
    """Blocks that checkpoint a part of themselves, with re-entrant autograd.

    From https://github.com/pytorch/pytorch/pull/92935 (FSDP and re-entrant checkpoints: silent errors).
    """

    def build_model(self):
        return Stack(*(CheckpointedBlock(use_reentrant=True) for _ in range(2)))
