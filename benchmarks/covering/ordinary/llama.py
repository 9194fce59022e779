"""A small Llama of transformers in bf16."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def make(width=512, depth=8, context=256):
    config = LlamaConfig(
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=8,
        intermediate_size=4 * width,
        vocab_size=16000,
    )

    def inputs(batch):
        tokens = torch.randint(16000, (batch, context))
        return {"input_ids": tokens, "labels": tokens}

    return LlamaForCausalLM(config).bfloat16(), inputs
