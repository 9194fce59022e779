"""The type in which all rules state a workspace."""

from __future__ import annotations

Workspace = tuple[tuple[int, int], ...]
"""For each output in order: bytes that are taken and freed before it is made, and bytes held while it is made."""

NOTHING = (0, 0)
