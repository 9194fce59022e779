"""The type in which all rules state a workspace."""

from __future__ import annotations

Workspace = tuple[tuple[int, int], ...]
"""Bytes taken and freed before an output is made, and bytes held while it is made; for each output in order."""

NOTHING = (0, 0)
