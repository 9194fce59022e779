"""A language model with an LSTM."""

import torch
from torch import nn
from torch.nn import functional


class Net(nn.Module):
    def __init__(self, vocabulary, width, depth):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, depth, batch_first=True, dropout=0.1)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        hidden, _ = self.lstm(self.embedding(tokens))
        return self.head(hidden)


def make(width=256, depth=2, vocabulary=5000):
    def inputs(batch):
        tokens = torch.randint(vocabulary, (batch, 65))
        return tokens[:, :-1], tokens[:, 1:]

    def loss(model, batch):
        return functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())

    return Net(vocabulary, width, depth), inputs, loss
