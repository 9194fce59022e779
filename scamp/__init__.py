"""ScaMP for those who write models and submit studies: ``from scamp import Workload, Client, submit``.

A model is a subclass of ``Workload``; ``Chain``, ``Split``, ``Spatial``, ``Context``, ``Divided``, ``Experts`` and
``hints`` say how it can be divided over devices. ``submit`` and ``Client`` talk to a service. Names are imported when
they are first used: those of workloads need torch, and some need the package scamp-server; what is missing is named.
"""

from __future__ import annotations

from typing import Any

from scamp.installed import installed_module

__version__ = "0.1.0"

_NAMES = {
    "scamp.client": ("Client", "submit"),
    "scamp.errors": ("Conflict", "InvalidInput", "NotFound", "Refused", "ScampError", "Unavailable"),
    "scamp.trackers.mirroring": ("mirror",),
    "scamp.user_code.bundling": ("bundle_code",),
    "scamp.workload.protocol": (
        *("Batch", "Chain", "Context", "Divided", "Experts", "Parts", "Phase"),
        *("Spatial", "Split", "Tables", "Workload"),
        *("hints", "inheritance"),
    ),
    "scamp.workload.split_sgd": ("SplitSGD",),
}
_NAMES_OF_SERVER = {
    "scamp_service.exchange.conversions": ("space_of_distributions", "space_of_tune"),
    "scamp_service.exchange.optuna_storage": ("ScampStorage",),
    "scamp_service.sizing.estimate": ("estimate",),
    "scamp_service.tune": ("scamp_resources",),
    "workloads.adapters.lightning": ("LightningWorkload",),
    "workloads.adapters.plain": ("from_function",),
    "workloads.adapters.transformers": ("TransformersWorkload",),
    "workloads.models.stdlib_gpt": ("StdlibGpt",),
    "workloads.models.unet3d_blobs": ("Unet3dBlobs",),
    "workloads.models.vit_digits": ("VitDigits",),
}
_MODULES = {name: module for module, names in (_NAMES | _NAMES_OF_SERVER).items() for name in names}
__all__ = ["__version__", *(name for names in _NAMES.values() for name in names)]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used. Raises ``ModuleNotFoundError`` that says what to install."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Not kept here: a process of ranks would no longer be clean after code that imports it
    return getattr(installed_module(_MODULES[name], f"scamp.{name}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
