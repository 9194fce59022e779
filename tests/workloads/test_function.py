"""Functions that make models, such as those of Hugging Face's transformers, which know nothing of ScaMP."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from estimators.model import Layout
from estimators.tracing.tracer import trace
from workloads.function import FunctionWorkload
from workloads.parallel.apply import apply_plan
from workloads.refusals import WrongResult
from workloads.sandbox.recipe import recipe_of
from workloads.training.memory.peak import measure_peak
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


def workload_of(inputs: Any) -> FunctionWorkload:
    workload = FunctionWorkload(lambda: (torch.nn.Linear(2, 2), inputs), {})
    workload.build_model()
    return workload


@pytest.mark.parametrize(
    "inputs",
    [
        lambda batch: torch.zeros(batch, 2),
        lambda batch: (torch.zeros(7, batch, 2), torch.zeros(4)),  # time comes first
        lambda batch: UserDict(x=torch.zeros(batch, 2)),  # as tokenizers return
        lambda batch: [torch.zeros(2) for _ in range(batch)],
    ],
)
def test_inputs_follow_the_batch_in_some_dimension(inputs: Any) -> None:
    assert workload_of(inputs).train_batch(torch.arange(5)) is not None


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (lambda batch: torch.zeros(4, 2), "ignores its argument"),
        (lambda batch: {"x": torch.zeros(4, 2), "scale": batch}, "ignores its argument"),
        (lambda batch: (torch.zeros(2) for _ in range(batch)), "generator, which holds no tensor"),
        (lambda batch: None, "returns None, which holds no tensor"),
    ],
)
def test_inputs_that_ignore_the_batch_are_refused(inputs: Any, said: str) -> None:
    with pytest.raises(WrongResult, match=said):
        workload_of(inputs).train_batch(torch.arange(5))


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (torch.nn.Linear(2, 2), "must return"),
        (
            (torch.nn.Linear(2, 2), torch.zeros(2)),
            r"a tensor of shape \[2\] as inputs, which must be a function",
        ),
        ((torch.nn.Linear(2, 2), None), "returns None as inputs"),
        ((torch.nn.Linear(2, 2), len, 3), "returns int as loss"),
        ((torch.nn.Linear(2, 2), len, None, 3), "returns int as optimizer"),
    ],
)
def test_a_function_with_a_wrong_result_is_refused(result: Any, said: str) -> None:
    with pytest.raises(WrongResult, match=said):
        FunctionWorkload(lambda: result, {}).build_model()


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, torch.optim.SGD])
def test_an_optimizer_that_computes_the_loss_again_is_refused(kind: Any) -> None:
    parts = torch.nn.Linear(2, 2), lambda batch: torch.ones(batch, 2), None, lambda parameters: kind(parameters, lr=0.1)
    workload = FunctionWorkload(lambda: parts, {})
    if kind is torch.optim.SGD:
        assert type(workload.optimizer(workload.build_model())) is kind
        return
    with pytest.raises(WrongResult, match="returns LBFGS, whose step computes the loss several times by a closure"):
        workload.optimizer(workload.build_model())


@pytest.mark.parametrize(
    "loss",
    [
        lambda output, inputs: output.square().mean(),
        lambda output, inputs: torch.nn.functional.mse_loss(output, inputs),
    ],
)
def test_a_loss_that_takes_the_model_for_its_output_is_told_so(loss: Any) -> None:
    workload = FunctionWorkload(lambda: (torch.nn.Linear(2, 2), lambda batch: torch.ones(batch, 2), loss), {})
    model = workload.build_model()
    with pytest.raises(WrongResult, match="takes the model for its output"):
        workload.loss(model, workload.train_batch(torch.arange(3)))


def test_an_optimizer_that_is_none_is_refused() -> None:
    workload = FunctionWorkload(lambda: (torch.nn.Linear(2, 2), len, None, lambda parameters: None), {})
    with pytest.raises(WrongResult, match="returns None instead of a torch optimizer"):
        workload.optimizer(workload.build_model())
