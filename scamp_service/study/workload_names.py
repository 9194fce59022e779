"""Names of the built-in workloads, for code that must not import torch. ``workloads.loading`` finds their classes."""

from __future__ import annotations

from collections.abc import Mapping

from scamp_service.errors import InvalidInput

BUILT_INS: Mapping[str, str] = {
    "stdlib_gpt": "a character-level GPT on the source text of Python's standard library",
    "unet3d_blobs": "a 3D U-Net that finds blobs in noisy volumes, which it generates",
    "vit_digits": "a vision transformer that classifies scikit-learn's 1,797 handwritten digits",
    "vit_digits_with_fault": "vit_digits, which can be asked to take memory that no trace shows",
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
