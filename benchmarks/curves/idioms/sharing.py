"""Parameters, modules and models that are used at several places."""

import copy

import torch
from torch import nn
from torch.nn import functional

from .points import CLASSES, FEATURES, WIDTH, WORDS, Points, Stack, Texts


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.linear(self.norm(x)).tanh()


class Reader(nn.Module):
    """Words [n, t] → logits [n, t, words]."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        nn.init.normal_(self.words.weight, std=0.2)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
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
        model = Stack(*(Block() for _ in range(3)))
        for block in model.blocks[1:]:
            block.linear.weight = model.blocks[0].linear.weight
        return model


class SharedNorm(Points):
    """One normalisation module that all blocks hold.

    From https://github.com/facebookresearch/lingua/issues/84 (weight sharing and FSDP).
    """

    def build_model(self):
        model = Stack(*(Block() for _ in range(2)))
        model.blocks[1].norm = model.blocks[0].norm
        return model


class RepeatedBlock(Points):
    """One block that is listed three times (ALBERT, universal transformers).

    From https://github.com/pytorch/pytorch/issues/105723 ("Parameter ... has been marked as ready twice").
    """

    def build_model(self):
        return Stack(*[Block()] * 3)


class LoopedBlocks(Points):
    """Two blocks that the model goes through twice.

    From https://github.com/pytorch/pytorch/issues/105723 ("Parameter ... has been marked as ready twice").
    """

    class Net(Stack):
        def forward(self, x):
            x = self.first(x)
            for _ in range(2):
                for block in self.blocks:
                    x = block(x)
            return self.head(x)

    def build_model(self):
        return self.Net(Block(), Block())


class Siamese(Points):
    """The loss calls the model twice, with a point and with its mirror image, and compares both.

    From https://github.com/pytorch/pytorch/issues/105723 (DDP: forward called several times before backward).
    """

    def build_model(self):
        return Stack(*(Block() for _ in range(2)))

    def losses(self, model, batch):
        points, labels = batch
        here, there = model(points), model(points.flip(-1))
        distances = (here - there).square().mean(-1)
        return functional.cross_entropy(here, labels, reduction="none") + 0.1 * distances


class Distilled(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = Stack(*(Block() for _ in range(3)))
        self.teacher = Stack(*(Block() for _ in range(2))).requires_grad_(False)

    def forward(self, points, *, of_teacher=False):
        return self.teacher(points) if of_teacher else self.student(points)


class TeacherStudent(Points):
    """The loss asks the teacher first, under no_grad, then the student; both are in one module.

    From https://github.com/NVIDIA/Model-Optimizer/pull/2059 (distillation under FSDP2).
    """

    def build_model(self):
        return Distilled()

    def losses(self, model, batch):
        points, labels = batch
        with torch.no_grad():
            targets = model(points, of_teacher=True).softmax(-1)
        logits = model(points)
        return functional.cross_entropy(logits, labels, reduction="none") - 0.5 * (
            targets * logits.log_softmax(-1)
        ).sum(-1)


class Actor(nn.Module):
    """Points → logits and a value. The value's own layers see the features without sending gradients back."""

    def __init__(self):
        super().__init__()
        self.actor = Stack(*(Block() for _ in range(2)))
        self.critic = nn.Sequential(nn.Linear(FEATURES + CLASSES, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))

    def forward(self, points):
        logits = self.actor(points)
        return logits, self.critic(torch.cat([points, logits.detach()], -1))[:, 0]


class ActorCritic(Points):
    """A loss of two parts, each of which detaches what belongs to the other.

    From https://github.com/pytorch/pytorch/issues/106637 (FSDP and losses that share one forward pass).
    """

    def build_model(self):
        return Actor()

    def losses(self, model, batch):
        points, labels = batch
        logits, values = model(points)
        surprise = functional.cross_entropy(logits, labels, reduction="none")
        return surprise * (1 + 0.1 * values.detach()) + 0.5 * (values - surprise.detach()).square()


class StopGradient(Points):
    """Two copies of an encoder; each learns to predict what the other says, without gradients through it (SimSiam).

    From https://github.com/facebookresearch/jepa/issues/51 (target and context encoders under FSDP).
    """

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.left = Stack(*(Block() for _ in range(2)))
            self.right = copy.deepcopy(self.left)

        def forward(self, points):
            return self.left(points), self.right(points)

    def build_model(self):
        return self.Net()

    def losses(self, model, batch):
        points, labels = batch
        left, right = model(points)
        agree = (left - right.detach()).square().mean(-1) + (right - left.detach()).square().mean(-1)
        return functional.cross_entropy(left + right, labels, reduction="none") + 0.1 * agree
