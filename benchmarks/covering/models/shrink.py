"""Makes default configurations of ``transformers`` small: a few layers, widths of 256, a vocabulary of 2000.

Sizes that were equal stay equal and heads still divide widths, because a size is replaced by a rule of its name and
its value alone, in every part of a configuration in the same way. Everything else keeps its default, so a model keeps
its kinds of layers, its dropout and its special paths.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

LAYERS, WIDTH, HEADS, VOCABULARY, EXPERTS, POSITIONS = 4, 256, 4, 2000, 4, 512

_LAYERS = re.compile(
    r"^(num_)?(hidden_|encoder_|decoder_|text_|entity_|qformer_|resampler_|speech_|n_)?(layers?|blocks|depth)$|"
    r"^(num|n)_.*(hidden_layers|_layers|_layer|layer)$|^(encoder|decoder)_.*layers$|^depth$|^num_blocks$"
)
_NOT_LAYERS = re.compile(r"shared_layers|conv|feat_extract|bottleneck|skip|per_|postnet|deconv|upsampl|hash|mtp|nextn")
_HEADS = re.compile(r"(attention_heads|num_heads|n_heads?|num_query_heads|^heads|_heads)$")
_WIDTH = re.compile(
    r"(hidden_size|d_model|n_embd|embed_dim|embedding_size|hidden_dim|projection_dim|embedding_dim|_width|dim_model|"
    r"model_dim|^dim|^width|_embed_size|hidden_channels|lru_width|attention_hidden_size|hidden_dims|encoder_dim|"
    r"d_vision|proj_dim|_out_dim|output_dim|output_size|conv_bias_dim|emb_dim|_hidden_dimension|hidden_features|"
    r"vision_feature_dim|embed_dimension|text_dim|out_hidden_size|qk_dim|v_dim|encoder_width|proj_size|query_dim)$"
)
_INNER = re.compile(
    r"(intermediate|ffn_dim|d_ff|n_inner|inner_dim|ffn_hidden|feed_?forward|mlp_dim|dim_ff|_ff$|ff_dim|ffn_size)"
)
_VOCABULARY = re.compile(r"(^|_)vocab(ulary)?_size")
_EXPERTS = re.compile(r"(num|n)_?(.*_)?experts$|^n_routed_experts$|^num_local_experts$|moe_num_experts$")
_CHOSEN = re.compile(
    r"experts_per_tok|moe_top_?k|^top_k$|experts_top_k|moe_topk|num_selected_experts|^moe_k$|top_k_experts"
)
_POSITIONS = re.compile(
    r"max_position|n_positions|max_seq_len|max_sequence_length|max_target_positions|^n_ctx$|max_length$"
)
_TOKEN = re.compile(r"_(token_)?(id|index|idx|ids)$|_token_index$|^(image|video|audio)_token$")

_KINDS = ("layer_types", "mlp_layer_types", "layers_block_type", "layer_type")
_DERIVED = ("_out_features", "_out_indices")


def shrink(config: Any, **overrides: Any) -> Any:
    """A small configuration of the same class; ``overrides`` are fields that a caller wants otherwise.

    An override of a part of the configuration is a dict of that part's own fields.
    """
    small = _small_fields(config)
    for name, value in overrides.items():
        part = small.get(name)
        if isinstance(value, Mapping) and hasattr(part, "to_dict"):
            small[name] = shrink(getattr(config, name), **value)
        else:
            small[name] = value
    new = type(config)(**small)
    kinds = _all_kinds(config, new)
    return type(config)(**{**small, **kinds, **overrides_of(overrides)}) if kinds else new


def overrides_of(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides that are not of a part."""
    return {name: value for name, value in overrides.items() if not isinstance(value, Mapping)}


def _small_fields(config: Any) -> dict[str, Any]:
    given_fields = _given_fields(config)
    small: dict[str, Any] = {}
    depth = vars(config).get("num_hidden_layers")
    if outputs := vars(config).get("_out_indices"):
        fewer = isinstance(depth, int) and depth > LAYERS and "depths" not in given_fields
        small["out_indices"] = list(range(LAYERS + 1 - len(outputs), LAYERS + 1)) if fewer else list(outputs)
    for name, (value, is_own) in given_fields.items():
        if name in _DERIVED or (is_own and name in _KINDS):
            continue
        actual = vars(config).get(name)
        if _is_part(actual):
            small[name] = shrink(actual)
        elif is_own or value is not None:
            values = {other: field_value for other, (field_value, _) in given_fields.items()}
            new = small_value(name, value, values) if value is not None else None
            if is_own or new != value:
                small[name] = new
    for name in getattr(config, "sub_configs", ()):
        if name not in small and _is_part(vars(config).get(name)):
            small[name] = shrink(vars(config)[name])
    return small


def _is_part(value: Any) -> bool:
    return hasattr(value, "to_dict") and hasattr(value, "model_type")


def _given_fields(config: Any) -> dict[str, tuple[Any, bool]]:
    """For each field its value before the constructor derived others from it, and whether a caller has set it."""
    fresh = vars(type(config)())
    actual = vars(config)
    by_name = {}
    for field in fields(config):
        is_own = not _is_part(actual.get(field.name)) and actual.get(field.name) != fresh.get(field.name)
        by_name[field.name] = (actual.get(field.name) if is_own else _default(field), is_own)
    return by_name


def _default(field: Any) -> Any:
    if field.default is not MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not MISSING else None


def small_value(name: str, value: Any, others: Mapping[str, Any]) -> Any:
    """The small value of the field ``name``; ``others`` are all fields of the same part of the configuration."""
    if isinstance(value, list | tuple) and value and all(_is_int(item) for item in value):
        return _small_list(name, list(value), others)
    if not _is_int(value):
        return value
    if _VOCABULARY.search(name):
        return min(value, VOCABULARY)
    if _TOKEN.search(name):
        return value if value < VOCABULARY else VOCABULARY - 1 - value % 97
    if _LAYERS.search(name) and not _NOT_LAYERS.search(name):
        return min(value, LAYERS)
    if _HEADS.search(name):
        return _heads(name, value, others)
    if name in ("head_dim", "attention_head_dim", "kv_channels", "d_kv", "global_head_dim"):
        return min(value, 64)
    if _INNER.search(name):
        return _inner(value, others)
    if _WIDTH.search(name):
        return min(value, WIDTH)
    if _EXPERTS.search(name) and "shared" not in name:
        return min(value, EXPERTS)
    if _CHOSEN.search(name):
        return min(value, 2)
    if name in ("n_group", "topk_group", "num_expert_group"):
        return 1
    if name == "first_k_dense_replace":
        return min(value, 1)
    if _POSITIONS.search(name):
        return min(value, POSITIONS)
    if name in ("image_size", "input_size", "img_size"):
        return image_side(value, others)
    if name in ("num_frames", "tubelet_frames", "frames_per_clip"):
        return min(value, 8)
    if name == "max_source_positions":
        return min(value, 128)
    return value


def image_side(side: int, others: Mapping[str, Any]) -> int:
    """A side of at most 8 patches, or of 128 pixels where patches are small; 224 where later stages are coarser."""
    if "depths" in others or "window_size" in others or "query_stride" in others:
        return min(side, 224)
    patch = others.get("patch_size") or 16
    patch = patch if _is_int(patch) else patch[0] if isinstance(patch, list | tuple) else 16
    return min(side, patch * max(8, 128 // patch // 8 * 8) if patch < 64 else side)


def _small_list(name: str, value: list[int], others: Mapping[str, Any]) -> list[int]:
    if name in ("depths", "encoder_depths", "layers", "num_conv_layers", "block_repeats", "num_layers_per_stage"):
        return [min(item, 2) for item in value]
    if name in ("image_size", "img_size", "input_size"):
        return [image_side(item, others) for item in value]
    return value


def _heads(name: str, value: int, others: Mapping[str, Any]) -> int:
    """``HEADS`` of them; keys and values have as many, one or half as many, as before."""
    if "key_value" in name or "kv_heads" in name:
        queries = [v for n, v in others.items() if _HEADS.search(n) and "kv" not in n and "key_value" not in n]
        if value == 1:
            return 1
        return HEADS if any(_is_int(v) and v <= value for v in queries) else HEADS // 2
    return HEADS if value >= HEADS else value


def _inner(value: int, others: Mapping[str, Any]) -> int:
    """Inner widths keep their ratio to the width, rounded to a power of two, between 1/4 and 4."""
    width = next((v for n, v in others.items() if _is_int(v) and _WIDTH.search(n) and v > WIDTH), WIDTH)
    ratio = value / width
    power = next((p for p in (0.25, 0.5, 1, 2, 4) if ratio <= p * 1.42), 4)
    return min(value, int(WIDTH * power))


def _all_kinds(config: Any, new: Any) -> dict[str, Any]:
    """Lists of the kinds of layers, with every kind that the default has; empty where none is missing."""
    kinds_by_field = {}
    names = {field.name for field in fields(config)}
    for name in _KINDS:
        if name not in names:
            continue
        before, after = vars(config).get(name), vars(new).get(name)
        if not (isinstance(before, list | tuple) and all(isinstance(item, str) for item in before) and before):
            continue
        count = next((getattr(new, n) for n in ("num_hidden_layers", "num_layers") if hasattr(new, n)), LAYERS)
        kinds = list(dict.fromkeys(before))
        if not isinstance(after, list | tuple) or len(after) != count or set(kinds) - set(after):
            kinds_by_field[name] = [kinds[number % len(kinds)] for number in range(count)]
    return kinds_by_field


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
