"""The built-in workloads by name, for code that must not import torch. ``workloads.loading`` finds their classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scamp_service.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A built-in workload: what it is, the ``parameters`` that it reads, and the ``metrics`` that it reports."""

    description: str
    parameters: tuple[str, ...]
    metrics: tuple[str, ...]


_DIGITS = ("depth", "dropout", "heads", "lr", "mlp_ratio", "patch", "warmup", "weight_decay", "width")

BUILT_INS: Mapping[str, BuiltIn] = {
    "stdlib_gpt": BuiltIn(
        "a character-level GPT on the source text of Python's standard library",
        ("context", "depth", "dropout", "heads", "lr", "weight_decay", "width"),
        ("loss", "unigram_entropy"),
    ),
    "unet3d_blobs": BuiltIn(
        "a 3D U-Net that finds blobs in noisy volumes, which it generates",
        ("levels", "lr", "noise", "side", "warmup", "weight_decay", "width"),
        ("accuracy", "loss"),
    ),
    "vit_digits": BuiltIn(
        "a vision transformer that classifies scikit-learn's 1,797 handwritten digits", _DIGITS, ("accuracy", "loss")
    ),
    "vit_digits_with_fault": BuiltIn(
        "vit_digits, which can be asked to take memory that no trace shows",
        (*_DIGITS, "spike_mib", "spike_step"),
        ("accuracy", "loss"),
    ),
}


def is_file(workload: str) -> bool:
    """Whether the workload is the user's own file: ``FILE.py:Class``."""
    return ":" in workload


def check_built_in(workload: str) -> None:
    """Check that a workload is a file or a known built-in name. Raises ``InvalidInput``."""
    if not is_file(workload) and workload not in BUILT_INS:
        raise InvalidInput(
            f"there is no built-in workload {workload!r}: choose from {', '.join(BUILT_INS)}, "
            "or name your own as FILE.py:Class and upload the file"
        )
