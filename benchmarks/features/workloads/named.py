"""Language models whose tensor-parallel plan is a ``tp_plan``: those of transformers bring it, one has it by hand."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import AutoModelForCausalLM, DeepseekV3Config, LlamaConfig, Phi3Config, Qwen3MoeConfig

from workloads.adapters.transformers import IGNORED, TransformersWorkload
from workloads.protocol import Workload

WORDS, LENGTH, WIDTH, HEADS = 512, 20, 128, 4
SIZES: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "num_hidden_layers": 3,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "intermediate_size": 2 * WIDTH,
    "pad_token_id": None,
    "max_position_embeddings": 64,
}


def texts(split):
    """Arithmetic sequences of words, with the number of words of each that count."""
    draws = torch.Generator().manual_seed(1 if split == "train" else 2)
    num = 200 if split == "train" else 37
    starts, steps = torch.randint(0, WORDS, (num, 1), generator=draws), torch.randint(1, 4, (num, 1), generator=draws)
    return (starts + steps * torch.arange(LENGTH)) % WORDS, torch.randint(5, LENGTH + 1, (num,), generator=draws)


class Language(TransformersWorkload):
    model_class = AutoModelForCausalLM
    default_batch = 8

    def dataset(self, split):
        words, sizes = texts(split)
        labels = words.masked_fill(torch.arange(LENGTH) >= sizes[:, None], IGNORED)
        return [{"input_ids": text, "labels": label} for text, label in zip(words, labels, strict=True)]


class Llama(Language):
    def config(self):
        return LlamaConfig(**SIZES)


class LlamaWithLora(Llama):
    def peft(self):
        from peft import LoraConfig

        return LoraConfig(r=4, target_modules=["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"])


class Phi(Language):
    def config(self):
        return Phi3Config(**SIZES)


class Mixture(Language):
    def config(self):
        experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
        return Qwen3MoeConfig(**{**SIZES, "head_dim": WIDTH // HEADS, **experts})


class Deepseek(Language):
    def config(self):
        latent = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
        experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "n_group": 2}
        sizes = {**SIZES, "num_key_value_heads": HEADS, **latent, **experts}
        return DeepseekV3Config(**sizes, topk_group=1, first_k_dense_replace=1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.q_norm, self.k_norm = nn.RMSNorm(WIDTH // HEADS), nn.RMSNorm(WIDTH // HEADS)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        y = self.before(x)
        q, k, v = (layer(y).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        mixed = functional.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.down(functional.gelu(self.up(self.between(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words):
        x = self.words(words) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class ByHand(Workload):
    """A model of its own with a plan in the notation of transformers."""

    num_train, num_eval, default_batch = 200, 37, 8
    tp_plan: Mapping[str, str] | None = {
        "words": "embedding_rowwise",
        **dict.fromkeys(("layers.*.before", "layers.*.between"), "sequence_parallel"),
        **dict.fromkeys(("layers.*.q", "layers.*.k", "layers.*.v", "layers.*.up"), "colwise"),
        **dict.fromkeys(("layers.*.q_norm", "layers.*.k_norm"), "replicated_with_grad_allreduce"),
        **dict.fromkeys(("layers.*.out", "layers.*.down"), "rowwise"),
        "head": "colwise_gather_output",
    }

    def build_model(self):
        return Model()

    def train_batch(self, indices):
        return texts("train")[0][indices]

    def eval_batch(self, indices):
        return texts("eval")[0][indices]

    def losses(self, model, words):
        return functional.cross_entropy(model(words)[:, :-1].transpose(1, 2), words[:, 1:], reduction="none").mean(1)

    def loss(self, model, words):
        return self.losses(model, words).mean()

    def evaluate(self, model, words):
        return {"loss": self.losses(model, words)}
