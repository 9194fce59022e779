"""Several policies on one cluster: each study's trials are placed by the policy that it names, or by the server's.

The trials of one policy are decided about together. The policy whose trial comes first in the queue decides first, and
the others get what it leaves; devices that it keeps for a blocked gang stay kept. So fairness and priorities choose
between policies as they do between studies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placement.model import Placement, Queued
from placement.packing.ledger import Ledger
from placement.packing.policies import policy_named
from placement.packing.policy import Decision, Policy, Wait


def by_study(names: Mapping[int, str], default: Policy) -> Policy:
    """The policy that decides by those of the studies, by id; ``default`` is that of all others."""
    if not names:
        return default
    policies = {study: policy_named(name) for study, name in names.items()}

    def decide(queue: Sequence[Queued], ledger: Ledger, seconds_left: Mapping[str, float]) -> Decision:
        parts: dict[str, list[Queued]] = {}
        for queued in queue:
            parts.setdefault(names.get(queued.study, ""), []).append(queued)
        placements: list[Placement] = []
        waits: dict[str, Wait] = {}
        kept: list[str] = []
        started: dict[str, float] = {}
        try:
            for part in parts.values():
                left = {**seconds_left, **started} if started else seconds_left
                decision = policies.get(part[0].study, default)(part, ledger, left)
                by_id = {queued.id: queued for queued in part}
                for placement in decision.placements:
                    ledger.place(placement.gang, placement.devices)
                    placements.append(placement)
                    seconds = by_id[placement.gang.id].shapes[placement.choice].seconds
                    if seconds is not None:
                        started[placement.gang.id] = seconds
                ledger.keep(decision.kept_devices)
                kept += decision.kept_devices
                waits |= decision.waits
        finally:
            ledger.release(*(placement.gang.id for placement in placements))
            ledger.give_back(kept)
        return Decision(placements, waits, tuple(kept))

    return decide
