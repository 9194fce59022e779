"""Parameters, modules and models that are used at several places."""

from torch import nn

from .points import WIDTH, WORDS, NormedBlock, Points, Stack, Texts


class Reader(nn.Module):
    """Words [n, t] → logits [n, t, words]."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        nn.init.normal_(self.words.weight, std=0.2)
        self.blocks = nn.ModuleList(NormedBlock() for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words):
        x = self.words(words)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class TiedHead(Texts):
    """The head uses the weight of the embedding.

    From https://github.com/huggingface/accelerate/pull/4171 (tied embeddings under FSDP2).
    """

    def build_model(self):
        model = Reader()
        model.head.weight = model.words.weight
        return model


class TiedEmbedding(Texts):
    """The embedding uses the weight of the head, which comes later among the modules.

    From https://github.com/verl-project/verl/issues/7834 (a naive fix unties the model silently).
    """

    def build_model(self):
        model = Reader()
        model.words.weight = model.head.weight
        return model


class SharedFeedForward(Points):
    """Blocks of their own with one common weight.

    From https://github.com/facebookresearch/lingua/issues/84 (all layers share the weight of their feed-forward).
    """

    def build_model(self):
        model = Stack(*(NormedBlock() for _ in range(3)))
        for block in model.blocks[1:]:
            block.linear.weight = model.blocks[0].linear.weight
        return model


class SharedNorm(Points):
    """One normalisation module that all blocks hold.

    From https://github.com/facebookresearch/lingua/issues/84 (weight sharing and FSDP).
    """

    def build_model(self):
        model = Stack(*(NormedBlock() for _ in range(2)))
        model.blocks[1].norm = model.blocks[0].norm
        return model
