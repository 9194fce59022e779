"""Imports what may be missing where studies are written and submitted: torch, and the packages of scamp-server."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

SERVER = ("api", "scamp_service", "workloads", "placement", "estimators")
"""The packages of scamp-server."""


class NotInstalled(ModuleNotFoundError):
    """A package is missing; the message says how to install it."""


def has_server() -> bool:
    """Whether scamp-server is installed in this environment, or this is a checkout."""
    return find_spec("scamp_service") is not None


def installed_module(module: str, purpose: str) -> Any:
    """The ``module``, which ``purpose`` needs, such as a name of the package scamp. Raises ``NotInstalled``."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or module).partition(".")[0]
        name = "scamp-server" if package in SERVER else package
        raise NotInstalled(
            f"{purpose} needs {name}, which is not installed here: pip install {name}", name=error.name
        ) from error
