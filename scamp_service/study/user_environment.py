"""The environment variables that users' code may read: an allow-list, so that tokens and passwords stay out of it."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

ALLOWED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "TERM", "XDG_*"),
    *("PYTHON*", "VIRTUAL_ENV", "LD_*", "MALLOC_*", "SSL_CERT_*", "REQUESTS_CA_BUNDLE"),
    *("CUDA_*", "CUBLAS_*", "CUDNN_*", "NVIDIA_*", "NCCL_*", "GLOO_*", "TORCH*", "PYTORCH_*", "TRITON_*", "KINETO_*"),
    *("OMP_*", "KMP_*", "GOMP_*", "MKL_*", "OPENBLAS_*", "DNNL_*", "ONEDNN_*"),
    *("HF_HOME", "HF_DATASETS_CACHE", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_*"),
    "SCAMP_DATA_DIR",
    "SCAMP_PASS_ENVIRONMENT",
)
"""Names, with ``*`` for any characters."""


def user_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables in ``environment`` that users' code may read.

    ``SCAMP_PASS_ENVIRONMENT`` in it lists further names, separated by commas, such as ``DATASETS,WANDB_*``.
    """
    further = (name.strip() for name in environment.get("SCAMP_PASS_ENVIRONMENT", "").split(","))
    allowed = (*ALLOWED, *further)
    return {name: value for name, value in environment.items() if any(fnmatchcase(name, each) for each in allowed)}
