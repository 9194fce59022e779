"""A vision transformer of transformers."""

import torch
from transformers import ViTConfig, ViTForImageClassification


def make(width=192, depth=6):
    config = ViTConfig(
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=3,
        intermediate_size=4 * width,
        image_size=64,
        patch_size=8,
    )
    config.num_labels = 10

    def inputs(batch):
        return {"pixel_values": torch.randn(batch, 3, 64, 64), "labels": torch.randint(10, (batch,))}

    return ViTForImageClassification(config), inputs
