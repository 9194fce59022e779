"""The parameters of a candidate that say how its weights are updated; ScaMP reads them besides ``batch``, ``lr`` and
``weight_decay``.

A study gives them in ``fixed`` or searches them in ``space``, as any other parameter. This module only checks their
values; ``workloads.training.updates`` does what they ask for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

PRECISIONS = ("fp32", "bf16", "fp16", "bf16-params")
REDUCE_PRECISIONS = ("fp32", "bf16")
EMA_WARMUPS = ("none", "copy", "ratio", "power")
REDUCTIONS = ("mean", "adasum")
SCALINGS = ("none", "adascale")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True, slots=True)
class _Rule:
    is_met: Callable[[Any], bool]
    words: str


_RULES = {
    "clip_norm": _Rule(
        lambda value: _is_number(value) and value > 0, "the largest norm of the gradients, a number above 0"
    ),
    "precision": _Rule(lambda value: value in PRECISIONS, f"one of {', '.join(PRECISIONS)}"),
    "reduce_precision": _Rule(lambda value: value in REDUCE_PRECISIONS, f"one of {', '.join(REDUCE_PRECISIONS)}"),
    "ema_decay": _Rule(
        lambda value: _is_number(value) and 0 < value < 1,
        "the share of the average that remains after each step, between 0 and 1",
    ),
    "ema_warmup": _Rule(lambda value: value in EMA_WARMUPS, f"one of {', '.join(EMA_WARMUPS)}"),
    "average_buffers": _Rule(lambda value: isinstance(value, bool), "true or false"),
    "swa_start": _Rule(
        lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 0,
        "the number of steps after which weights are averaged, an integer of at least 0",
    ),
    "reduce": _Rule(lambda value: value in REDUCTIONS, f"one of {', '.join(REDUCTIONS)}"),
    "adasum_replicas": _Rule(
        lambda value: isinstance(value, int) and value > 1 and value & (value - 1) == 0,
        "the number of replicas whose updates are combined, a power of two",
    ),
    "scale_lr": _Rule(lambda value: value in SCALINGS, f"one of {', '.join(SCALINGS)}"),
    "base_batch": _Rule(
        lambda value: isinstance(value, int) and not isinstance(value, bool) and value > 0,
        "the batch that lr and steps are meant for, an integer of at least 1",
    ),
    "smallest_batch": _Rule(
        lambda value: isinstance(value, int) and not isinstance(value, bool) and value > 0,
        "the smallest batch that ScaMP may train with, an integer of at least 1",
    ),
    "largest_batch": _Rule(
        lambda value: isinstance(value, int) and not isinstance(value, bool) and value > 0,
        "the largest batch that ScaMP may train with, an integer of at least 1",
    ),
}
NAMES = tuple(_RULES)


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """How the weights of a candidate are updated; None: not at all.

    Gradients are scaled down to the norm ``clip_norm``. Forward passes run in ``precision``; with "bf16-params" FSDP
    adds up gradients in ``reduce_precision``. Evaluations use an average of the weights: an exponential one with
    ``ema_decay``, which ``ema_warmup`` lowers in the first steps, or the mean of those after each step from
    ``swa_start`` on. With ``average_buffers`` it also has averages of buffers.
    With ``reduce`` "mean" one update is made from the mean of all gradients; with "adasum" each of ``adasum_replicas``
    makes one from its own, and these are combined. With ``scale_lr`` "adascale" the learning rate and the number of
    steps are those of ``base_batch`` (None: of the workload's default batch), and follow the larger batch. The bounds
    ``smallest_batch`` and ``largest_batch`` are described in ``workloads.batch``.
    """

    clip_norm: float | None = None
    precision: str = "fp32"
    ema_decay: float | None = None
    ema_warmup: str = "none"
    swa_start: int | None = None
    average_buffers: bool = False
    reduce: str = "mean"
    adasum_replicas: int = 2
    scale_lr: str = "none"
    base_batch: int | None = None
    smallest_batch: int | None = None
    largest_batch: int | None = None
    reduce_precision: str = "fp32"

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> TrainingOptions:
        """The options in a candidate's parameters. Raises ``ValueError`` for values that make no sense."""
        options = {name: params[name] for name in NAMES if params.get(name) is not None}
        for name, value in options.items():
            if complaint := wrong_value(name, value):
                raise ValueError(complaint)
        if "ema_decay" in options and "swa_start" in options:
            raise ValueError(BOTH_AVERAGES)
        if options.get("ema_warmup", "none") != "none" and "ema_decay" not in options:
            raise ValueError(NEEDS_EMA)
        if options.get("average_buffers") and not options.keys() & {"ema_decay", "swa_start"}:
            raise ValueError(NEEDS_AVERAGES)
        if "reduce_precision" in options and options.get("precision") != "bf16-params":
            raise ValueError(NEEDS_BF16_PARAMS)
        if options.get("reduce") == "adasum" and options.get("scale_lr") == "adascale":
            raise ValueError(BOTH_SCALINGS)
        return cls(**options)


BOTH_SCALINGS = "reduce: adasum and scale_lr: adascale are two ways to train with a larger batch: keep one"
NEEDS_BF16_PARAMS = "reduce_precision needs precision: bf16-params; otherwise gradients are in fp32"
NEEDS_ADASCALE = (
    "smallest_batch and largest_batch need batch: largest, or scale_lr: adascale, by which the learning rate follows a "
    "batch that changes"
)
NEEDS_BASE = "a batch that ScaMP chooses needs base_batch beside scale_lr: adascale: the batch that lr is meant for"
NEEDS_EMA = "ema_warmup needs ema_decay, the average that it warms up"
NEEDS_AVERAGES = "average_buffers needs ema_decay or swa_start, by which weights are averaged"
BOTH_AVERAGES = "ema_decay and swa_start are two ways to average the weights: keep one"


def wrong_value(name: str, value: object) -> str:
    """The reason why a parameter cannot have this value, in words; empty if it can, or if ScaMP does not read it."""
    rule = _RULES.get(name)
    if rule is None or value is None or rule.is_met(value):
        return ""
    return f"{name} is {rule.words}; got {value!r}"


def never_read(name: str, others: Iterable[str]) -> str:
    """Words for a parameter that no code reads, with the most similar of the ``others`` that might be meant."""
    close = get_close_matches(name, sorted(others), 1, 0.7)
    advice = f"did you mean {close[0]!r}?" if close else "remove it, or read it in the workload"
    return f"the workload never reads the parameter {name!r}: {advice}"
