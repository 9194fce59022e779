"""Models of published measurements, as a user's file would make them, for ``benchmarks.published``.

The architectures are those of transformers. What the measured programs did differently from the present library is
defined here, by sizes alone: LoRA of peft, 4-bit weights of bitsandbytes, fused kernels, and older losses. Nothing here
computes meaningful numbers; a trace needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    AutoModelForCausalLM,
    GPTBigCodeConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    PretrainedConfig,
)

Batch = dict[str, Tensor]

_LLAMA_3: dict[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
_GROUPS: dict[str, Any] = {"num_key_value_heads": 8}
CONFIGS: dict[str, Callable[[], PretrainedConfig]] = {
    "Mistral-7B": lambda: MistralConfig(vocab_size=32000, sliding_window=None, **_LLAMA_3, **_GROUPS),
    "Llama-3-8B": lambda: LlamaConfig(vocab_size=128256, **_LLAMA_3, **_GROUPS),
    "Mixtral-8x7B": lambda: MixtralConfig(
        vocab_size=32000, num_local_experts=8, num_experts_per_tok=2, sliding_window=None, **_LLAMA_3, **_GROUPS
    ),
    "Llama-2-70B": lambda: LlamaConfig(
        vocab_size=32000,
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
    ),
    "PowerLM-3B": lambda: GraniteConfig(
        vocab_size=49152,
        hidden_size=2304,
        intermediate_size=9216,
        num_hidden_layers=40,
        num_attention_heads=36,
        num_key_value_heads=36,
        tie_word_embeddings=True,
    ),
    "santacoder-1.1B": lambda: GPTBigCodeConfig(
        vocab_size=49280, n_positions=2048, n_embd=2048, n_layer=24, n_head=16, n_inner=8192, multi_query=True
    ),
}
"""Configurations of the published checkpoints, by the names in ``rows``."""

_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "c_attn")


def finetuned(
    model: str = "Mistral-7B",
    tuning: str = "full",
    kernels: str = "none",
    loss: str = "function",
    length: int = 4096,
    autocast: bool = False,
    held: bool = False,
) -> tuple[nn.Module, Callable[[int], Batch], Any, Any]:
    """Fine-tuning with Hugging Face's Trainer in bf16.

    ``tuning`` is full, lora or 4bit (LoRA on 4-bit weights); ``kernels`` none, fused (losses and norms) or linear (the
    loss is fused with the last layer as well). ``loss`` says how the library of that time computed it: ``function``
    while the caller kept the bf16 logits, ``inline`` after they were replaced, ``narrow`` in bf16. With ``held``,
    the inputs of blocks and their gradients stay until the backward pass ends, as FSDP1 has it where blocks are frozen.
    """
    config = CONFIGS[model]()
    config._attn_implementation = "sdpa"
    network = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    network.config.use_cache = False
    if tuning != "full":
        _adapt(network, four_bit=tuning == "4bit")
    if kernels != "none":
        _replace(network, _fused)
    if kernels == "linear":
        network.lm_head = _FusedLast(network.lm_head.weight)

    if held:
        _hold_inputs(_blocks(network))

    def inputs(batch: int) -> Batch:
        ids = torch.zeros(batch, length, dtype=torch.long)
        return {"input_ids": ids, "labels": ids.clone()}

    def run(model: nn.Module, batch: Batch) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            logits: Tensor = model(input_ids=batch["input_ids"], use_cache=False).logits
            if kernels == "linear":
                return logits.mean()
            held_logits = logits if loss == "function" else None
            logits = logits if loss == "narrow" else logits.float()
            result = _loss(logits, batch["labels"], fused=kernels == "fused")
            del held_logits
            return result

    def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW([parameter for parameter in parameters if parameter.requires_grad], lr=1e-5)

    return network, inputs, run, optimizer


def _loss(logits: Tensor, labels: Tensor, *, fused: bool) -> Tensor:
    """The mean over all positions but the last. Their logits are copied to be contiguous."""
    shifted = logits[..., :-1, :].contiguous().view(-1, logits.shape[-1])
    targets = labels[..., 1:].contiguous().view(-1)
    if not fused:
        return functional.cross_entropy(shifted, targets)
    losses: Tensor = _FusedLoss.apply(shifted, targets)
    return losses.sum() / targets.numel()


class _FusedLoss(torch.autograd.Function):
    """Cross entropy that keeps the logits alone, and writes their gradient in their place (Unsloth's kernel)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        losses = logits.new_zeros(len(logits), dtype=torch.float32)
        ctx.save_for_backward(logits, torch.zeros_like(losses), targets)
        return losses

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        logits, _, _ = ctx.saved_tensors
        return logits, None


class _FusedNorm(nn.Module):
    """RMSNorm that keeps its input, and writes its gradient in place of that of its output (Unsloth's kernel)."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = _FusedNormFunction.apply(inputs, self.weight)
        return result


class _FusedNormFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(inputs, weight, inputs.new_zeros(inputs.shape[:-1], dtype=torch.float32))
        return torch.empty_like(inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        _ = ctx.saved_tensors
        return gradient, None


class _FusedLast(nn.Module):
    """The last layer and its loss at once (Liger's kernel): the losses of all positions instead of their logits."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, hidden: Tensor) -> Tensor:
        shifted = hidden[..., :-1, :].contiguous()
        losses: Tensor = _FusedLastFunction.apply(shifted.view(-1, shifted.shape[-1]), self.weight)
        return losses


class _FusedLastFunction(torch.autograd.Function):
    """Makes both gradients in the forward pass, from one chunk of logits after another."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor) -> Tensor:
        gradient = torch.zeros_like(hidden)
        of_weight = torch.zeros_like(weight) if weight.requires_grad else None
        num_chunks = -(-weight.shape[0] // weight.shape[1])
        for chunk in hidden.tensor_split(num_chunks)[:2]:  # the others take the same memory
            logits = functional.linear(chunk, weight).float()
            _ = functional.linear(logits.to(hidden.dtype), weight.t())
        ctx.save_for_backward(gradient, of_weight)
        return hidden.new_zeros(len(hidden), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        of_hidden, of_weight = ctx.saved_tensors
        return of_hidden, of_weight


class _Lora(nn.Module):
    """A frozen linear layer with an adapter of rank 16 in fp32, as peft 0.13 computes it."""

    def __init__(self, base: Any, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.base, self.dropout = base, nn.Dropout(0.1)
        self.down = nn.Linear(num_inputs, 16, bias=False, dtype=torch.float32)
        self.up = nn.Linear(16, num_outputs, bias=False, dtype=torch.float32)

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = self.base(inputs)
        dtype = result.dtype
        result = result + self.up(self.down(self.dropout(inputs.to(torch.float32)))) * 1.0
        return result.to(dtype)


class _FourBit(nn.Module):
    """A frozen linear layer in bitsandbytes' 4 bits.

    There is a scale of 8 bits for 64 weights, and one of 32 bits for 256 of these. Both are buffers. Both passes make
    the weight in bf16 anew and keep no input.
    """

    def __init__(self, base: Any, storage: torch.dtype) -> None:
        super().__init__()
        weight = base.weight
        self.shape, num_weights = weight.shape, weight.numel()
        num_stored = num_weights // 2 // torch.empty(0, dtype=storage).element_size()
        values = torch.zeros(num_stored, 1, dtype=storage)
        self.weight = nn.Parameter(values, requires_grad=False)
        self.register_buffer("scales", torch.zeros(num_weights // 64, dtype=torch.uint8))
        self.register_buffer("scales_of_scales", torch.zeros(num_weights // 64 // 256, dtype=torch.float32))

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = _FourBitFunction.apply(inputs.to(torch.bfloat16), self.weight, self.shape)
        return result


class _FourBitFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, shape: torch.Size) -> Tensor:
        ctx.shape = shape
        ctx.save_for_backward(weight)
        return functional.linear(inputs, weight.new_empty(shape, dtype=inputs.dtype))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        return gradient @ weight.new_empty(ctx.shape, dtype=gradient.dtype), None, None


def _adapt(model: Any, *, four_bit: bool) -> None:
    """Freeze the model and add adapters; the embedding's output needs a gradient, as checkpoints of blocks do."""
    model.requires_grad_(False)

    def adapted(name: str, child: nn.Module) -> nn.Module | None:
        weight = getattr(child, "weight", None)
        if weight is None or weight.dim() != 2 or isinstance(child, nn.Embedding) or name == "lm_head":
            return None
        num_outputs, num_inputs = weight.shape
        base = _FourBit(child, torch.bfloat16) if four_bit else child
        return _Lora(base, num_inputs, num_outputs) if name in _TARGETS else base

    _replace(model, adapted)
    model.get_input_embeddings().register_forward_hook(lambda module, args, output: output.requires_grad_(True))


def _blocks(model: nn.Module) -> list[nn.Module]:
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    longest = max(lists, key=len)
    return list(longest)


def _hold_inputs(blocks: Iterable[nn.Module]) -> None:
    """Hold each block's input and its gradient until the backward pass ends.

    FSDP1 registers ``_post_backward_reshard_only_hook`` of a frozen block on its inputs. The hook refers to their
    autograd nodes, and these to the inputs, until the handle is removed at the end of the backward pass.
    """
    held: list[tuple[Tensor, Tensor]] = []

    def hold(tensor: Tensor, gradient: Tensor) -> None:
        if not held:
            torch.autograd.Variable._execution_engine.queue_callback(held.clear)
        held.append((tensor, gradient))

    def watch(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden: Tensor = args[0] if args else kwargs["hidden_states"]
        if hidden.requires_grad and torch._C._current_graph_task_id() == -1:  # otherwise it is recomputed
            same = hidden.detach()
            hidden.register_hook(lambda gradient: hold(same, gradient))

    for block in blocks:
        block.register_forward_pre_hook(watch, with_kwargs=True)


def _fused(name: str, child: nn.Module) -> nn.Module | None:
    if not type(child).__name__.endswith("RMSNorm"):
        return None
    assert isinstance(child.weight, nn.Parameter)
    return _FusedNorm(child.weight)


def _replace(model: nn.Module, by: Callable[[str, nn.Module], nn.Module | None]) -> None:
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if (other := by(name, child)) is not None:
                setattr(parent, name, other)
