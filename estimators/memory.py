"""What one rank needs under a plan: the traced peak, and a margin for the memory that no trace of tensors shows.

Pure: numbers in, numbers out. The margins are measured (see the constants); a rank that needs more all the same dies
of a true allocation failure, and its trial comes back with ``extra_bytes``.
"""

from __future__ import annotations

from estimators.model import MIB, Footprint, ModelProfile, Plan

MARGIN_SHARE = 0.03
MARGIN_BYTES = 4 * MIB
GANG_MARGIN_BYTES = 2 * MIB


def footprint(profile: ModelProfile, plan: Plan, extra_bytes: int = 0) -> Footprint:
    """Bytes of one rank. ``extra_bytes`` is what out-of-memory failures have added; it counts as part of the peak.

    Raises KeyError when the plan's layout has not been traced.
    """
    peak_bytes = profile.curves[plan.layout].peak_bytes(plan.micro_batch) + extra_bytes
    margin_bytes = MARGIN_BYTES + int(MARGIN_SHARE * peak_bytes)
    if plan.dp_shard > 1:
        margin_bytes += GANG_MARGIN_BYTES
    return Footprint(peak_bytes, margin_bytes)
