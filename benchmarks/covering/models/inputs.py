"""Makes the arguments of one training step for any model of ``transformers``, from its task and its configuration.

Arguments are those that a user passes: tokens, images or sound, and labels. What a model can make itself is left out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

LENGTH, TARGET_LENGTH, SOUND_SAMPLES, SPECTRUM_FRAMES, BOXES, GRID = 128, 64, 8000, 128, 3, 8
LOW_TOKEN, HIGH_TOKEN = 20, 900  # below every special token that ``shrink`` has moved

# Image tokens in the text of one sample, which a processor would write: as many as the model makes of an image.
IMAGE_TOKENS = {
    "aya_vision": 16, "cohere2_vision": 16, "deepseek_vl": 64, "florence2": 17, "internvl": 16, "janus": 64,
    "llava": 64,
    "ovis2": 64, "paligemma": 64, "pp_chart2table": 16, "qianfan_ocr": 16, "step3p7": 4, "idefics2": 64, "idefics3": 4,
    "smolvlm": 4, "video_llava": 64, "vipllava": 49, "lfm2_vl": 16,
}  # fmt: skip

Sample = dict[str, Any]


def inputs_of(model: nn.Module, task: str) -> Callable[[int], Sample]:
    """A function from the number of samples to the arguments of ``model``, with labels where it takes them."""
    config: Any = model.config
    names = set(inspect.signature(model.forward).parameters)
    make = _MAKERS.get(task, _text)

    def inputs(batch: int) -> Sample:
        return {name: value for name, value in make(config, names, batch).items() if name in names}

    return inputs


def tokens(batch: int, length: int = LENGTH, highest: int = HIGH_TOKEN) -> Tensor:
    """Random token ids below ``highest``, none of them special."""
    return torch.randint(LOW_TOKEN, highest, (batch, length))


def find(config: Any, *names: str, default: Any = None) -> Any:
    """The first of the fields ``names`` in the configuration, else in one of its parts, else ``default``."""
    for name in names:
        for part in (config, *parts_of(config)):
            value = vars(part).get(name)
            if value is not None:
                return value
    return default


def parts_of(config: Any) -> list[Any]:
    """The sub-configurations, vision before text, down to the last."""
    parts = [value for value in vars(config).values() if hasattr(value, "to_dict") and hasattr(value, "model_type")]
    return [part for child in parts for part in (child, *parts_of(child))]


def _text(config: Any, names: set[str], batch: int) -> Sample:
    ids = tokens(batch, highest=min(find(config, "vocab_size", default=HIGH_TOKEN), HIGH_TOKEN))
    sample: Sample = {"input_ids": ids, "labels": ids.clone()}
    if "bbox" in names:
        sample["bbox"] = torch.randint(0, 400, (batch, LENGTH, 1)).expand(-1, -1, 4).clone()
    return sample


def _to_text(config: Any, names: set[str], batch: int) -> Sample:
    highest = min(find(config, "vocab_size", default=HIGH_TOKEN), HIGH_TOKEN)
    sample = {"labels": tokens(batch, TARGET_LENGTH, highest)}
    if "labels" not in names or config.model_type == "fsmt":
        sample["decoder_input_ids"] = sample["labels"].clone()
    return {**_source(config, names, batch), **sample}


def _source(config: Any, names: set[str], batch: int) -> Sample:
    if "input_ids" in names and not {"input_features", "input_values"} & names:
        return {"input_ids": tokens(batch), "bbox": torch.full((batch, LENGTH, 4), 0.5)}
    for name in ("input_features", "input_values", "pixel_values", "flattened_patches"):
        if name in names:
            return _sound(config, names, batch) if name.startswith("input") else _images(config, names, batch)
    return {"input_ids": tokens(batch)}


def _sound(config: Any, names: set[str], batch: int) -> Sample:
    bins = find(
        config,
        "num_mel_bins",
        "input_feat_per_channel",
        "feature_size",
        "n_mels",
        "feature_projection_input_dim",
        default=80,
    )
    frames = find(config, "max_source_positions", default=0)
    frames = 2 * frames if frames and "input_features" in names else find(config, "max_length", default=SPECTRUM_FRAMES)
    if "input_values" in names and find(config, "conv_dim") is None and find(config, "num_mel_bins"):
        return {"input_values": torch.randn(batch, frames, bins)}
    return {
        "input_values": torch.randn(batch, SOUND_SAMPLES),
        "input_features": torch.randn(batch, frames, bins)
        if _frames_first(config)
        else torch.randn(batch, bins, frames),
    }


def _frames_first(config: Any) -> bool:
    return config.model_type not in ("whisper",)


def _ctc(config: Any, names: set[str], batch: int) -> Sample:
    sample = _sound(config, names, batch)
    masks = {"attention_mask": torch.ones(sample["input_features"].shape[:2], dtype=torch.long)}
    return {**sample, **(masks if "input_features" in names else {}), "labels": torch.randint(1, 30, (batch, 4))}


def _sound_class(config: Any, names: set[str], batch: int) -> Sample:
    return {**_sound(config, names, batch), "labels": torch.randint(0, 2, (batch,))}


def image_shape(config: Any) -> tuple[int, int, int]:
    """(channels, height, width) of the images that the model takes."""
    side = find(config, "image_size", "img_size", "input_size", default=128)
    height, width = (side, side) if isinstance(side, int) else tuple(side)[-2:] if len(side) > 1 else (side[0], side[0])
    channels = find(config, "num_channels", "in_channels", "in_chans", default=3)
    return channels, height, width


def _images(config: Any, names: set[str], batch: int) -> Sample:
    shape = image_shape(config)
    if config.model_type in ("siglip2", "lfm2_vl"):
        side, patch = 8, find(config, "patch_size")
        shapes = torch.tensor([[side, side]] * batch)
        masks = {"pixel_attention_mask": torch.ones(batch, side**2, dtype=torch.long), "spatial_shapes": shapes}
        return {"pixel_values": torch.randn(batch, side**2, 3 * patch**2), **masks}
    if config.model_type in ("idefics2", "idefics3", "smolvlm", "idefics"):
        return {"pixel_values": torch.randn(batch, 1, *shape)}
    return {"pixel_values": torch.randn(batch, *shape)}


def _image_class(config: Any, names: set[str], batch: int) -> Sample:
    if "input_ids" in names and "labels" in names:  # pixels as tokens
        return {"input_ids": tokens(batch, 256, 500), "labels": torch.randint(0, 2, (batch,))}
    return {**_images(config, names, batch), "labels": torch.randint(0, 2, (batch,))}


def _detection(config: Any, names: set[str], batch: int) -> Sample:
    """Images alone: matching boxes to labels needs Pillow, which ScaMP does not install. The loss is of the output."""
    return _images(config, names, batch)


def _pixels(config: Any, names: set[str], batch: int) -> Sample:
    images = _images(config, names, batch)["pixel_values"]
    return {"pixel_values": images, "labels": torch.randint(0, 2, (batch, *images.shape[-2:]))}


def _masks(config: Any, names: set[str], batch: int) -> Sample:
    images = _images(config, names, batch)["pixel_values"]
    sides = images.shape[-2:]
    return {
        "pixel_values": images,
        "pixel_values_videos": images[:, None],
        "mask_labels": [torch.randint(0, 2, (BOXES, *sides)).float() for _ in range(batch)],
        "class_labels": [torch.randint(0, 2, (BOXES,)) for _ in range(batch)],
        "task_inputs": tokens(batch, 77),
        "text_inputs": None,
    }


def _depth(config: Any, names: set[str], batch: int) -> Sample:
    images = _images(config, names, batch)["pixel_values"]
    return {"pixel_values": images, "prompt_depth": images[:, :1]}


def _video(config: Any, names: set[str], batch: int) -> Sample:
    frames = find(config, "num_frames", "frames_per_clip", default=8)
    video = torch.randn(batch, frames, *image_shape(config))
    return {"pixel_values": video, "pixel_values_videos": video, "labels": torch.randint(0, 2, (batch,))}


def _series(config: Any, names: set[str], batch: int) -> Sample:
    return {
        "past_values": torch.randn(batch, find(config, "context_length", default=128)),
        "freq": torch.zeros(batch, 1, dtype=torch.long),
        "future_values": torch.randn(batch, find(config, "horizon_length", default=128)),
    }


def _pairs(config: Any, names: set[str], batch: int) -> Sample:
    length = min(find(config, "max_position_embeddings", default=16), 64)
    images = _video(config, names, batch) if "pixel_values_videos" in names else _images(config, names, batch)
    return {"input_ids": tokens(batch, length), **images, "return_loss": True}


def _image_text(config: Any, names: set[str], batch: int) -> Sample:
    ids = tokens(batch)
    images = _patches(config, batch) if "image_grid_thw" in names else _images(config, names, batch)
    count = IMAGE_TOKENS.get(config.model_type, 0)
    if "image_grid_thw" in names:
        count = GRID**2 // find(config, "spatial_merge_size", default=2) ** 2
    if count:
        token = find(config, "image_token_id", "image_token_index")
        ids = torch.cat([torch.full((batch, count), token), torch.where(ids == token, LOW_TOKEN, ids)], 1)
    kinds = {"mm_token_type_ids": torch.cat([torch.ones_like(ids[:, :count]), torch.zeros_like(ids[:, count:])], 1)}
    return {"input_ids": ids, "labels": ids.clone(), **images, **kinds}


def _patches(config: Any, batch: int) -> Sample:
    """Images as rows of patches, and the numbers of patches along time, height and width of each."""
    patch, moments = find(config, "patch_size"), find(config, "temporal_patch_size", default=1)
    rows = torch.randn(batch * GRID**2, image_shape(config)[0] * moments * patch**2)
    return {"pixel_values": rows, "image_grid_thw": torch.tensor([[1, GRID, GRID]] * batch)}


def _text_class(config: Any, names: set[str], batch: int) -> Sample:
    return {**_text(config, names, batch), **_images(config, names, batch), "labels": torch.randint(0, 2, (batch,))}


_MAKERS: Mapping[str, Callable[[Any, set[str], int], Sample]] = {
    "causal LM": _text,
    "masked LM": _text,
    "sequence to sequence": _to_text,
    "speech to text": _to_text,
    "CTC": _ctc,
    "audio classification": _sound_class,
    "image classification": _image_class,
    "object detection": _detection,
    "semantic segmentation": _pixels,
    "universal segmentation": _masks,
    "depth estimation": _depth,
    "image to image": _depth,
    "video classification": _video,
    "time series": _series,
    "image-text pairs": _pairs,
    "image-text to text": _image_text,
    "pretraining": _image_text,
    "sequence classification": _text_class,
}
