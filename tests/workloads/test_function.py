"""Models of Hugging Face's transformers, which know nothing of ScaMP: predicted and real memory of a step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from estimators.model import Layout
from estimators.tracing.tracer import trace
from workloads.function import FunctionWorkload
from workloads.parallel.apply import apply_plan
from workloads.sandbox.recipe import recipe_of
from workloads.training.peak import measure_peak
from workloads.training.step import train_step

CONTEXT, TOKENS = 32, 500


def inputs(batch: int) -> dict[str, torch.Tensor]:
    tokens = torch.arange(batch * CONTEXT).view(batch, CONTEXT) % TOKENS
    return {"input_ids": tokens, "labels": tokens}


def gpt2(width: int, depth: int) -> Any:
    config = GPT2Config(n_layer=depth, n_embd=width, n_head=2, n_positions=CONTEXT, vocab_size=TOKENS)
    return GPT2LMHeadModel(config), inputs


def llama(width: int, depth: int) -> Any:
    config = LlamaConfig(
        num_hidden_layers=depth,
        hidden_size=width,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=3 * width,
        max_position_embeddings=CONTEXT,
        vocab_size=TOKENS,
    )
    return LlamaForCausalLM(config), inputs


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("make", [gpt2, llama])
def test_the_memory_of_a_transformer_is_predicted(make: Any, recompute: bool) -> None:
    torch.set_num_threads(1)
    workload = FunctionWorkload(make, {"width": 64, "depth": 2})
    predicted = trace(recipe_of(workload), Layout(recompute=recompute), 16).curve.peak_bytes(8)
    model = workload.build_model()
    apply_plan(model, workload.blocks(model), Layout(recompute=recompute), None)
    optimizer = workload.optimizer(model)

    def step() -> None:
        train_step(workload, model, optimizer, [workload.train_batch(torch.zeros(8))], 1)

    step()
    assert predicted == pytest.approx(measure_peak(torch.device("cpu"), model, optimizer, step), rel=0.01)
