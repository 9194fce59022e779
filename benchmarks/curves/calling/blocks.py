"""Blocks that are not called once each, one after another, with a tensor: twice, checkpointed, with other values."""

from collections import namedtuple
from dataclasses import dataclass

import torch
from torch.utils.checkpoint import checkpoint

from .base import Block, Form, Net


@dataclass
class State:
    """Hidden states, and the mean size of what the blocks have added to them."""

    hidden: torch.Tensor
    size: torch.Tensor


class StateBlock(Block):
    def forward(self, x):
        if not isinstance(x, State):
            x = State(x, x.new_zeros(()))
        change = self.change(x.hidden)
        return State(x.hidden + change, x.size + change.square().mean())


class StateNet(Net):
    def forward(self, words):
        state = self.body(self.words(words))
        return self.head(state.hidden)


class Dataclasses(Form):
    """Blocks return a dataclass.

    From https://github.com/pytorch/pytorch/issues/173415 (FSDP2 and outputs that are no pytree).
    """

    net, block = StateNet, StateBlock


class Holder:
    """Hidden states in an object that blocks change in place."""

    def __init__(self, hidden):
        self.hidden = hidden


class HolderBlock(Block):
    def forward(self, holder):
        holder.hidden = holder.hidden + self.change(holder.hidden)


class HolderNet(Net):
    def forward(self, words):
        holder = Holder(self.words(words))
        for block in self.blocks:
            block(holder)
        return self.head(holder.hidden)


class Objects(Form):
    """Blocks take an object, change it, and return nothing."""

    net, block = HolderNet, HolderBlock


class DictBlock(Block):
    def forward(self, x):
        return {**x, "hidden": x["hidden"] + self.change(x["hidden"])}


class DictNet(Net):
    def forward(self, words):
        return self.head(self.body({"hidden": self.words(words), "words": words})["hidden"])


class Dicts(Form):
    """Blocks take and return a dictionary of tensors."""

    net, block = DictNet, DictBlock


Pair = namedtuple("Pair", "hidden before")


class PairBlock(Block):
    def forward(self, hidden, before=None):
        return Pair(hidden + self.change(hidden), hidden)


class PairNet(Net):
    def forward(self, words):
        pair = Pair(self.words(words), None)
        for block in self.blocks:
            pair = block(before=pair.before, hidden=pair.hidden)
        return self.head(pair.hidden)


class NamedTuples(Form):
    """Blocks are called with keywords and return a named tuple."""

    net, block = PairNet, PairBlock


class LoopedNet(Net):
    def body(self, x):
        return super().body(super().body(x))


class Looped(Form):
    """All blocks run twice, one after another (Universal Transformer)."""

    net = LoopedNet


class OneBlock(Form):
    """The list of blocks holds one block several times (ALBERT)."""

    def make_blocks(self):
        return [self.block(self.width)] * 3


class AroundNet(Net):
    reentrant = True

    def body(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return x


class ReentrantAround(Form):
    """The model recomputes each block by a re-entrant checkpoint."""

    net = AroundNet


class FrozenNet(Net):
    def body(self, x):
        half = len(self.blocks) // 2
        with torch.no_grad():
            for block in self.blocks[:half]:
                x = block(x)
        for block in self.blocks[half:]:
            x = block(x)
        return x


class LowerHalfFrozen(Form):
    """The first half of the blocks runs under ``no_grad``."""

    net = FrozenNet


class ChangedNet(Net):
    def body(self, x):
        for block in self.blocks:
            x = block.forward(x)
        return x


class ForwardDirectly(Form):
    """The model calls ``block.forward``, past all hooks of the block."""

    net = ChangedNet


class PartsNet(Net):
    def body(self, x):
        for block in self.blocks:
            x = x + block.down(torch.relu(block.up(block.norm(x))))
        return x


class PartsOfBlocks(Form):
    """The model calls the layers of its blocks, and never a block."""

    net = PartsNet
