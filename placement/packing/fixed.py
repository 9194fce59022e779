"""The simple policies, first come first served: ``static`` gives all trials equally many devices, ``min-degree`` the
fewest that each can use.

They are what a cluster does without a packer, and the baselines that others are compared with. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from placement.model import Queued
from placement.packing.ledger import Ledger
from placement.packing.policy import Decision, Policy
from placement.packing.reasons import DeviceRule
from placement.packing.round import Round


def static(num_ranks: int) -> Policy:
    """Every trial gets ``num_ranks`` devices for itself, the oldest first; one that must wait blocks all behind it.

    A trial without such a shape takes its narrowest wider one, or else its widest.
    """

    def choice(queued: Queued) -> int:
        wider = (n for n, shape in enumerate(queued.shapes) if shape.num_ranks >= num_ranks)
        return next(wider, len(queued.shapes) - 1)

    def decide(queue: Sequence[Queued], ledger: Ledger, seconds_left: Mapping[str, float]) -> Decision:
        return _first_come(queue, Round(ledger, DeviceRule.IDLE), choice, is_blocking=True)

    return decide


def min_degree(queue: Sequence[Queued], ledger: Ledger, seconds_left: Mapping[str, float]) -> Decision:
    """Every trial gets the fewest devices that it can use, the oldest first; those that fit pass those that do not."""
    return _first_come(queue, Round(ledger, DeviceRule.FULLEST), lambda queued: 0, is_blocking=False)


def _first_come(
    queue: Sequence[Queued], packing_round: Round, choice: Callable[[Queued], int], *, is_blocking: bool
) -> Decision:
    is_blocked = False
    with packing_round:
        for queued in queue:
            if is_blocked or not packing_round.start(queued, choice(queued)):
                packing_round.wait(queued)
                is_blocked = is_blocking
        return packing_round.decision()
