"""Models of the families of ``transformers``: each from its default configuration made small, with random weights.

``scamp estimate benchmarks/covering/models/families.py:make --param family=bert --param batch=3`` estimates one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.covering.models.inputs import inputs_of, parts_of
from benchmarks.covering.models.shrink import shrink

# Tasks in order of preference: a family is trained for the first that has a class for it.
TASKS: Mapping[str, str] = {
    "causal LM": "CAUSAL_LM",
    "masked LM": "MASKED_LM",
    "sequence to sequence": "SEQ_TO_SEQ_CAUSAL_LM",
    "speech to text": "SPEECH_SEQ_2_SEQ",
    "CTC": "CTC",
    "audio classification": "AUDIO_CLASSIFICATION",
    "image classification": "IMAGE_CLASSIFICATION",
    "object detection": "OBJECT_DETECTION",
    "semantic segmentation": "SEMANTIC_SEGMENTATION",
    "universal segmentation": "UNIVERSAL_SEGMENTATION",
    "depth estimation": "DEPTH_ESTIMATION",
    "video classification": "VIDEO_CLASSIFICATION",
    "image to image": "IMAGE_TO_IMAGE",
    "time series": "TIME_SERIES_PREDICTION",
    "image-text pairs": "ZERO_SHOT_IMAGE_CLASSIFICATION",
    "image-text to text": "IMAGE_TEXT_TO_TEXT",
    "sequence classification": "SEQUENCE_CLASSIFICATION",
    "pretraining": "PRETRAINING",
}
OWN_TASK: Mapping[str, str] = {
    # Their first class is only the decoder of a model that has an encoder, or takes images too.
    **dict.fromkeys(
        (
            "bart",
            "bigbird_pegasus",
            "blenderbot",
            "blenderbot-small",
            "marian",
            "mbart",
            "mvp",
            "pegasus",
            "plbart",
            "prophetnet",
        ),
        "sequence to sequence",
    ),
    "whisper": "speech to text",
    "git": "image-text to text",
}
# Fields without which a family's default configuration makes no model, or none that is small.
OVERRIDES: Mapping[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1, 3]},
    "blt": {"encoder_hash_byte_group_vocab": 2000},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "hunyuan_v1_dense": {"head_dim": 64},
    "hunyuan_v1_moe": {"head_dim": 64},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "mamba2": {"num_heads": 8},
    "ministral": {"head_dim": 64},
    "nemotron": {"num_key_value_heads": 2},
    "nemotron_h": {"n_groups": 2},
    "reformer": {"is_decoder": True, "axial_pos_shape": (8, 16), "max_position_embeddings": 128},
    "xmod": {"default_language": "en_XX"},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"] * 2},
    "zamba": {"layers_block_type": ["mamba", "hybrid"] * 2},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "perceiver": {"d_latents": 256, "num_latents": 64, "num_self_attends_per_block": 4},
    "wav2vec2-bert": {"vocab_size": 32},
    "wav2vec2-conformer": {"vocab_size": 32},
    "efficientnet": {"hidden_dim": 2560},
    "dpt": {"backbone_out_indices": [0, 1, 2, 3]},
    "tipsv2_dpt": {"backbone_out_indices": [0, 1, 2, 3]},
    "qwen2_vl": {"text_config": {"num_attention_heads": 2, "num_key_value_heads": 1}},
    "qwen2_5_vl": {"text_config": {"num_attention_heads": 2, "num_key_value_heads": 1}},
    "rf_detr": {"num_queries": 50},
    "align": {"projection_dim": 640},
    "layoutlmv3": {"coordinate_size": 42, "shape_size": 44},
    "lilt": {"hidden_size": 192},
}
RESNET_DETECTORS = ("conditional_detr", "dab-detr", "deformable_detr", "detr", "table-transformer")


def find_task(family: str) -> tuple[str, str]:
    """(task, name of the class) of a family."""
    mappings = import_module("transformers.models.auto.modeling_auto")
    tasks = [OWN_TASK[family]] if family in OWN_TASK else TASKS
    for task in tasks:
        class_names = getattr(mappings, f"MODEL_FOR_{TASKS[task]}_MAPPING_NAMES").get(family)
        if class_names:
            return task, class_names if isinstance(class_names, str) else class_names[0]
    raise ValueError(f"transformers has no class that trains {family!r}")


def small_config(family: str) -> Any:
    """The family's default configuration, made small."""
    mapping = import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    default = mapping[family](**(_resnet() if family in RESNET_DETECTORS else {}))
    config = shrink(default, **OVERRIDES.get(family, {}))
    for name in ("decoder_start_token_id", "pad_token_id"):
        if getattr(config, name, None) is None:
            setattr(config, name, 1)
    return config


def _resnet() -> dict[str, Any]:
    """Fields that replace a backbone of the package timm, which ScaMP does not install."""
    backbone = import_module("transformers").ResNetConfig(out_features=["stage2", "stage3", "stage4"])
    return {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None, "backbone_config": backbone}


def make(
    family: str, arithmetic: str = "fp32", batch: int = 2
) -> tuple[nn.Module, Callable[[int], Any], Callable[[nn.Module, Any], Tensor], Callable[..., torch.optim.Optimizer]]:
    """The family's model with its inputs, loss and AdamW.

    ``arithmetic`` is fp32, bf16 (parameters, too) or amp (autocast to bf16). ``batch`` belongs to the candidate alone.
    """
    task, name = find_task(family)
    model_class = getattr(import_module("transformers"), name)
    config = small_config(family)
    fitting = [part for part in (config, *parts_of(config)) if isinstance(part, model_class.config_class or object)]
    model = model_class(fitting[0] if fitting else config)
    inputs = inputs_of(model, task)
    if arithmetic == "bf16":
        model = model.bfloat16()
    return model, lambda size: _cast(inputs(size), arithmetic), lambda m, b: _loss(m, b, arithmetic), _adamw


def _adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4)


def _cast(sample: Any, arithmetic: str) -> Any:
    if isinstance(sample, Tensor):
        return sample.bfloat16() if arithmetic == "bf16" and sample.is_floating_point() else sample
    if isinstance(sample, dict):
        return {name: _cast(value, arithmetic) for name, value in sample.items()}
    return [_cast(value, arithmetic) for value in sample] if isinstance(sample, list) else sample


def _loss(model: nn.Module, sample: Any, arithmetic: str) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16, enabled=arithmetic == "amp"):
        output = model(**sample)
        loss = getattr(output, "loss", None)
        if isinstance(loss, Tensor):
            return loss if loss.ndim == 0 else loss.mean()
        return main_output(output).float().square().mean()


def main_output(output: Any) -> Tensor:
    """The first tensor of an output that has a gradient."""
    if isinstance(output, Tensor):
        return output
    values = (
        output.values() if isinstance(output, Mapping) else vars(output).values() if is_dataclass(output) else output
    )
    for value in values:
        if isinstance(value, Tensor) and value.requires_grad:
            return value
        if isinstance(value, list | tuple | Mapping):
            try:
                return main_output(value)
            except LookupError:
                continue
    raise LookupError("the model returns no tensor that has a gradient")
