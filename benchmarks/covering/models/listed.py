"""Families that train for real, in the order of their names, and those that are left out, with the error of each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

_FOUND = json.loads(Path(__file__).with_name("listed.json").read_text())
LISTED: Sequence[str] = tuple(_FOUND["runs"])
LEFT_OUT: Mapping[str, str] = _FOUND["fails"]
UNAFFORDABLE = {name for name, ran in _FOUND["runs"].items() if ran["seconds"] > 4 or ran["resident_mib"] > 1000}
"""Families that run too long or take too much for a real run of 13 samples."""
