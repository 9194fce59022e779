"""What one rank needs under a plan: the traced peak, and a margin for the memory that no trace of tensors shows.

Pure: numbers in, numbers out. The margins are measured (see the constants); a rank that needs more all the same dies
of a true allocation failure, and its trial comes back with ``extra_bytes``.
"""

from __future__ import annotations

from estimators.model import MIB, Footprint, ModelProfile, Plan

# Measured with real steps under RLIMIT_DATA (torch 2.13, one thread): the smallest budget that a rank survived was at
# most 0.15 MiB over the traced peak without a gang (7 ViT and GPT plans of 20 to 125 MiB, also with recompute and
# accumulation; the peak itself within 0.02 %), and 1 to 2 MiB over it with FSDP2 on 2 gloo ranks (4 plans of 10 to
# 74 MiB): there gloo copies what it reduces (up to 1.7 % of the peak), and allocates for its threads. Records of the
# collectives add up to 2 MiB in the first 50 steps, and no more in the next 350.
# In Ray workers more was seen: a gang of four ranks of 83 MiB needed over 10 MiB beyond it, and one rank of 87 MiB that
# took 32 micro-batches of 2 samples over 7 MiB (small buffers leave malloc's heap in pieces).
# The rest is for what those runs had not: the other threads of a Ray worker, which share the limit, and operations
# with scratch memory of their own, such as large convolutions.
MARGIN_SHARE = 0.06
MARGIN_BYTES = 4 * MIB
GANG_MARGIN_BYTES = 6 * MIB


def footprint(profile: ModelProfile, plan: Plan, extra_bytes: int = 0) -> Footprint:
    """Bytes of one rank. ``extra_bytes`` is what out-of-memory failures have added; it counts as part of the peak.

    Raises KeyError when the plan's layout has not been traced.
    """
    peak_bytes = profile.curves[plan.layout].peak_bytes(plan.micro_batch) + extra_bytes
    margin_bytes = MARGIN_BYTES + int(MARGIN_SHARE * peak_bytes)
    if plan.dp_shard > 1:
        margin_bytes += GANG_MARGIN_BYTES
    return Footprint(peak_bytes, margin_bytes)
