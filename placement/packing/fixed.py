"""The simple policies, first come first served: ``static`` gives all trials equally many devices, ``min-degree`` the
fewest that each can use.

They are what a cluster does without a packer, and the baselines that others are compared with. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from placement.model import Queued
from placement.packing.allotment import possible_shapes
from placement.packing.kinds import within_kinds
from placement.packing.ledger import Ledger
from placement.packing.policy import Blocked, Decision, Policy, Wait
from placement.packing.reasons import DeviceRule
from placement.packing.round import Round

FEWEST = "the policy min-degree gives each trial the fewest"
IN_ORDER = Wait(Blocked.BUSY, "waits for the trials before it: its policy, static, starts them in their order")


def static(num_ranks: int) -> Policy:
    """Every trial gets ``num_ranks`` devices for itself, the oldest first; one that must wait blocks all behind it.

    A trial without such a shape takes its narrowest wider one, or else its widest, of those that the cluster could
    hold.
    """

    def choice(queued: Queued, able: Sequence[int]) -> int:
        return next((n for n in able if queued.shapes[n].num_ranks >= num_ranks), able[-1])

    so_many = f"the policy static-{num_ranks} gives each trial {num_ranks}, or the nearest that it can use"

    @within_kinds
    def decide(queue: Sequence[Queued], ledger: Ledger, seconds_left: Mapping[str, float]) -> Decision:
        packing_round = Round(ledger, DeviceRule.IDLE, why_so_many=lambda queued, choice: so_many)
        return _first_come(queue, packing_round, choice, is_blocking=True)

    return decide


@within_kinds
def min_degree(queue: Sequence[Queued], ledger: Ledger, seconds_left: Mapping[str, float]) -> Decision:
    """Every trial gets the fewest devices that it can use, the oldest first; those that fit pass those that do not."""
    packing_round = Round(ledger, DeviceRule.FULLEST, why_so_many=lambda queued, choice: FEWEST)
    return _first_come(queue, packing_round, lambda queued, able: able[0], is_blocking=False)


def _first_come(
    queue: Sequence[Queued],
    packing_round: Round,
    choice: Callable[[Queued, Sequence[int]], int],
    *,
    is_blocking: bool,
) -> Decision:
    """Start each in its shape at ``choice``, among the positions of those that the cluster could hold."""
    is_blocked = False
    behind: dict[str, Wait] = {}
    with packing_round:
        for queued in queue:
            able = possible_shapes(queued, packing_round.ledger)
            if not able:
                packing_round.wait(queued)
            elif is_blocked:
                behind[queued.id] = IN_ORDER
            elif not packing_round.start(queued, choice_index := choice(queued, able)):
                packing_round.wait(queued, choice_index)
                is_blocked = is_blocking
        decision = packing_round.decision()
        return replace(decision, waits={**decision.waits, **behind})
