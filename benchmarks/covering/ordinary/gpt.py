"""GPT-2 of transformers."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def make(width=256, depth=6, context=128):
    config = GPT2Config(n_embd=width, n_layer=depth, n_head=4, n_positions=context, vocab_size=8000)

    def inputs(batch):
        tokens = torch.randint(8000, (batch, context))
        return {"input_ids": tokens, "labels": tokens}

    return GPT2LMHeadModel(config), inputs
