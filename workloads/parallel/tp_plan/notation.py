"""Reads a ``tp_plan``: names of layers with a style for each, in the notation of transformers.

``described`` turns it into a ``Split`` of each block, and one of everything outside the blocks. It divides nothing and
raises nothing: a plan that ranks cannot follow says so when a layout with tensor parallelism is applied.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any

from torch import Tensor, nn

from workloads.protocol import Split, Workload

COLUMNS = ("colwise", "local_colwise")
ROWS = ("rowwise", "local_rowwise")
GATHERED = ("colwise_gather_output", "colwise_rep")
SCATTERED = ("rowwise_split_input", "rowwise_rep")
EMBEDDING_ROWS, EMBEDDING_COLUMNS = "embedding_rowwise", "embedding_colwise"
NORMS = ("sequence_parallel",)
SUMMED = "replicated_with_grad_allreduce"
LATENT = "mla_kv_a_proj"
EXPERTS = "moe_tp_experts"
PACKED = "packed_colwise"
NOTHING = ("replicate", "replicated", "local", "gather")
"""Layers that every rank has whole. ``local`` and ``gather`` belong to ``local_rowwise``, whose results are added up at
once, so they are whole already."""
_KNOWN = (*COLUMNS, *ROWS, *GATHERED, *SCATTERED, EMBEDDING_ROWS, EMBEDDING_COLUMNS, *NORMS, SUMMED, LATENT, EXPERTS)
WHOLE_IF_NEEDED = (*GATHERED, *SCATTERED, EMBEDDING_ROWS, EMBEDDING_COLUMNS)
"""Styles of layers whose input and output every rank has whole: a layer that cannot be divided may stay whole, too."""

_OUTSIDE = "_scamp_split_outside"
_KEYS = re.compile("k_proj|qkv_proj|query_key_value|key|value")


@dataclass(frozen=True, slots=True)
class NamedSplit(Split):
    """A ``Split`` by a ``tp_plan``: ``others`` are layers of further styles, by name, and ``refusal`` says why ranks
    cannot follow the plan (empty: they can). ``in_experts`` are parameters of a module of experts, by name."""

    others: tuple[tuple[str, str], ...] = ()
    in_experts: tuple[tuple[str, str], ...] = ()
    refusal: str = ""


def described(workload: Workload, model: nn.Module) -> nn.Module:
    """Return ``model``, with a ``split`` for each of its blocks by the ``tp_plan`` of the workload or of the model.

    Blocks that have a ``split`` of their own keep it unless the workload itself has a plan.
    """
    plan = _plan_of(workload, model)
    blocks = list(dict.fromkeys(workload.blocks(model))) if plan else []
    if not plan:
        return model
    if workload.tp_plan is None and any(isinstance(getattr(block, "split", None), Split) for block in blocks):
        return model
    entries = dict(_entries(model, plan))
    refusal = _refusal(model, plan, entries)
    names = {module: name for name, module in model.named_modules()}
    heads = _num_heads(model, entries)
    inside: set[str] = set()
    for block in blocks:
        start = f"{names[block]}."
        of_block = {name: style for name, style in entries.items() if name.startswith(start)}
        inside.update(of_block)
        block.split = _split(model, of_block, start, heads, refusal)  # type: ignore[assignment]
    outside = {name: style for name, style in entries.items() if name not in inside}
    model.__dict__[_OUTSIDE] = _split(model, outside, "", heads, refusal, may_stay_whole=bool(blocks))
    return model


def split_outside(model: nn.Module) -> NamedSplit | None:
    """The ``Split`` of what is outside the blocks of ``model``, by its ``tp_plan``; None without one."""
    split = model.__dict__.get(_OUTSIDE)
    return split if isinstance(split, NamedSplit) else None


def _plan_of(workload: Workload, model: nn.Module) -> Mapping[str, str]:
    """The workload's plan, or that of the model, by the full names of its layers.

    A part of the model may bring the plan, such as the one below an adapter of peft.
    """
    if workload.tp_plan is not None:
        return workload.tp_plan
    plan: dict[str, str] = {}
    inside: set[nn.Module] = set()  # what a part has merged into its own plan
    for prefix, module in model.named_modules():
        if module in inside or not ("tp_plan" in vars(module) or hasattr(type(module), "tp_plan")):
            continue  # peft's wrappers pass on attributes of the model that they wrap
        brought: Any = getattr(module, "tp_plan", None)
        if isinstance(brought, Mapping) and brought:
            plan |= {f"{prefix}.{name}" if prefix else name: style for name, style in brought.items()}
            inside.update(module.modules())
    return plan


def _entries(model: nn.Module, plan: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Full name of each module or parameter that the plan names, with its style.

    A ``*`` stands for one part of a name. A layer with an adapter of peft is its ``base_layer``; one of the adapter's
    two layers, whichever is next to the divided side, has the same style.
    """
    patterns = [
        (re.compile(re.escape(pattern).replace(r"\*", "[^.]+")), style)
        for pattern, style in plan.items()
        if style not in NOTHING
    ]
    modules = dict(model.named_modules())
    for name in (*modules, *(name for name, _ in model.named_parameters())):
        style = next((style for pattern, style in patterns if pattern.fullmatch(name)), None)
        if style is None:
            continue
        if not isinstance(getattr(modules.get(name), "base_layer", None), nn.Module):
            yield name, style
            continue
        yield f"{name}.base_layer", style
        adapted = "lora_B" if style in (*COLUMNS, *GATHERED) else "lora_A"
        for other in modules:
            if other.startswith(f"{name}.{adapted}."):
                yield other, style


def _refusal(model: nn.Module, plan: Mapping[str, str], entries: Mapping[str, str]) -> str:
    """Why ranks cannot follow the plan, in one sentence; empty if they can."""
    modules = dict(model.named_modules())
    experts = {name for name, style in entries.items() if style == EXPERTS}
    linear = (*COLUMNS, *ROWS, *GATHERED, *SCATTERED, LATENT)
    shared = _shared(model)
    for name, style in entries.items():
        module, owner = modules.get(name), name.rpartition(".")[0]
        if owner in experts and style in _INSIDE and module is None and model.get_parameter(name).ndim == 3:
            continue
        if style not in _KNOWN:
            return _in_words(name, style, "is a style that ranks do not know")
        if module is None:
            return _in_words(name, style, "is a parameter, and only layers are divided")
        kind = nn.Embedding if style in (EMBEDDING_ROWS, EMBEDDING_COLUMNS) else nn.Linear
        if style in (*linear, EMBEDDING_ROWS, EMBEDDING_COLUMNS) and not isinstance(module, kind):
            return _in_words(name, style, f"is a {type(module).__name__}, and the style is for nn.{kind.__name__}")
        if style in (*COLUMNS, *ROWS) and not shared.isdisjoint(map(id, module.parameters())):
            return _in_words(name, style, "shares its weight with another layer")
        if style == LATENT and _config_number(model, "qk_rope_head_dim") is None:
            return _in_words(name, style, "needs qk_rope_head_dim in the config of the model")
    return "" if entries else f"the tp_plan names no layer of the model: {', '.join(plan)}"


def _in_words(name: str, style: str, why: str) -> str:
    return (
        f"tensor-parallel ranks cannot follow the tp_plan: {name} ({style}) {why}; use plans with tp=1, or give the "
        "workload a tp_plan without it"
    )


def _split(
    model: nn.Module,
    entries: Mapping[str, str],
    start: str,
    heads: int,
    refusal: str,
    *,
    may_stay_whole: bool = False,
) -> NamedSplit:
    """The split by ``entries``, all of whose names begin with ``start``.

    One that cannot be followed has two parts: so it is traced, and studies show the reason.
    """

    def present(*styles: str) -> tuple[str, ...]:
        return tuple(name.removeprefix(start) for name, style in entries.items() if style in styles and layer(name))

    modules = dict(model.named_modules())

    def layer(name: str) -> bool:
        return name in modules

    others = (*WHOLE_IF_NEEDED, LATENT, EXPERTS)
    return NamedSplit(
        columns=present(*COLUMNS),
        rows=present(*ROWS),
        norms=present(*NORMS),
        summed=present(SUMMED),
        most_parts=2 if refusal else _most_parts(model, entries, heads, may_stay_whole),
        others=tuple((name, entries[f"{start}{name}"]) for name in present(*others)),
        in_experts=tuple(
            (name.removeprefix(start), style) for name, style in entries.items() if not layer(name) and style in _INSIDE
        ),
        refusal=refusal,
    )


_INSIDE = (*COLUMNS, *ROWS, PACKED)


def _most_parts(model: nn.Module, entries: Mapping[str, str], heads: int, may_stay_whole: bool) -> int:
    """The number of parts into which all layers of ``entries`` can be divided, at most; 0: into any number.

    Layers that may stay whole set no limit beside others.
    """
    modules, parameters = dict(model.named_modules()), dict(model.named_parameters())
    needed, others = [heads] if any(style in COLUMNS for style in entries.values()) else [], []
    for name, style in entries.items():
        weight = getattr(modules[name], "weight", None) if name in modules else parameters[name]
        if not isinstance(weight, Tensor) or weight.ndim < 2:
            continue
        if style in COLUMNS:
            needed.append(weight.shape[-2])
        elif style in ROWS:
            needed.append(weight.shape[-1])
        elif style == PACKED:
            needed.append(weight.shape[-2] // 2)
        elif style in GATHERED:
            others.append(weight.shape[0])
        elif style in SCATTERED:
            others.append(weight.shape[1])
    return gcd(*needed) or (0 if may_stay_whole else gcd(*others))


def _num_heads(model: nn.Module, entries: Mapping[str, str]) -> int:
    """The number of attention heads, and of heads of keys, that ranks divide; 0 if the model does not say it."""
    divided = any(style in COLUMNS and _KEYS.search(name.rpartition(".")[2]) for name, style in entries.items())
    numbers = [_config_number(model, name) for name in ("num_attention_heads", "num_key_value_heads")]
    return gcd(*(number for number in numbers if number)) if divided else 0


def _config_number(model: nn.Module, name: str) -> int | None:
    """A number in the config of the model, of a part of it, or of the text model in the config."""
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        for source in (config, *getattr(config, "__dict__", {}).values()):
            if isinstance(number := getattr(source, name, None), int):
                return number
    return None


def rope_size(model: nn.Module) -> int:
    """The number of features of a latent key that carry its position (``qk_rope_head_dim`` of the config)."""
    return _config_number(model, "qk_rope_head_dim") or 0


def _shared(model: nn.Module) -> set[int]:
    """Ids of the parameters that several modules have."""
    seen: set[int] = set()
    several: set[int] = set()
    for _, module in model.named_modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                (several if id(parameter) in seen else seen).add(id(parameter))
    return several


def is_divisible(model: nn.Module, layer: nn.Module, style: str, num_parts: int) -> bool:
    """Whether ``layer``, with a style of ``WHOLE_IF_NEEDED``, is divided over so many ranks rather than left whole.

    It stays whole if it shares its weight, or if its size is no multiple. torch (2.13) looks for the padding of an
    embedding in the part of each rank, so rows of one with ``padding_idx`` stay whole, too.
    """
    weight = layer.weight
    assert isinstance(weight, Tensor)
    if style == EMBEDDING_ROWS and getattr(layer, "padding_idx", None) is not None:
        return False
    dimension = 0 if style in (*GATHERED, EMBEDDING_ROWS) else 1
    return weight.shape[dimension] % num_parts == 0 and id(weight) not in _shared(model)
