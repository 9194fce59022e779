"""Says in a refusal which kinds of plans a model excludes, and why: otherwise nobody knows what to change. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from estimators.model import Layout

_LONGEST = 200  # characters of a cause


def causes(refusals: Mapping[Layout, str]) -> str:
    """The end of a reason: kinds of plans that could not be traced, with the first cause; empty if there are none."""
    first: dict[str, str] = {}
    for layout, why in refusals.items():
        first.setdefault(_kind(layout), _cause(why))
    kinds: dict[str, list[str]] = {}
    for kind, cause in first.items():
        kinds.setdefault(cause, []).append(kind)
    return "".join(f"; no {', '.join(words)}: {cause}" for cause, words in kinds.items())


def _kind(layout: Layout) -> str:
    """The first of what divides the model, in the order in which it is likely to be the cause."""
    if layout.pp > 1:
        return "pipelines"
    if layout.tp > 1:
        return "tensor parallelism"
    if layout.spatial > 1:
        return "slabs of space"
    if layout.dp_shard > 1:
        return "FSDP"
    if layout.zero1:
        return "ZeRO-1"
    if layout.dp_replicate > 1:
        return "replicas"
    return "co-shard" if layout.co_shard > 1 else "recompute" if layout.recompute else "plans of one rank"


def _cause(why: str) -> str:
    """What happened, without the line of code that called the library, and without advice for that line."""
    lines = [line for line in why.splitlines() if line.strip()]
    if len(lines) > 1 and re.search(r", line \d+: ", lines[0]):
        lines = lines[1:]
    cause = " ".join(line.strip() for line in lines if not line.startswith("→"))
    return f"{cause[: _LONGEST - 1]}…" if len(cause) > _LONGEST else cause
