"""A classifier with BERT of transformers."""

import torch
from transformers import BertConfig, BertForSequenceClassification


def make(width=256, depth=4, length=128):
    config = BertConfig(hidden_size=width, num_hidden_layers=depth, num_attention_heads=4, intermediate_size=4 * width)

    def inputs(batch):
        tokens = torch.randint(30000, (batch, length))
        mask = torch.ones(batch, length, dtype=torch.long)
        return {"input_ids": tokens, "attention_mask": mask, "labels": torch.randint(2, (batch,))}

    return BertForSequenceClassification(config), inputs
