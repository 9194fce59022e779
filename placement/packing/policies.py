"""The policies by name, as the server's settings and simulations choose them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from placement.packing.elastic import elastic
from placement.packing.fixed import min_degree, static
from placement.packing.packer import pack
from placement.packing.policy import Policy

POLICIES: Mapping[str, Policy] = MappingProxyType({"pack": pack, "min-degree": min_degree, "elastic": elastic})
"""All policies without a number in their names."""
NAMES = (*POLICIES, "static-N")


def policy_named(name: str) -> Policy:
    """The policy of this name; ``static-8`` gives every trial 8 devices. Raises ValueError with the known names."""
    if match := re.fullmatch(r"static-([1-9]\d*)", name):
        return static(int(match[1]))
    if name not in POLICIES:
        raise ValueError(f"unknown policy {name!r}: choose one of {', '.join(NAMES)}, such as static-8")
    return POLICIES[name]
