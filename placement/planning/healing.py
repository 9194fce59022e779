"""Says what to add to the prediction of a trial that ran out of memory, from its own attempts. Pure.

A failure shows a lower bound and not the need: a request fails as soon as the budget is exceeded, so the rest of what
grew is never asked for. It does not show either what grew. So several corrections are tried in order, until a plan fits
with one of them:

1. after the third failure, ``ROOM`` times what is known, divided as plans divide the model states. A need that has
   outgrown a whole device is larger than it seems, and plans over more ranks divide it;
2. what is known, and a quarter of the traced peak, on every rank, however the plan divides the model: after one failure
   this covers any cause, and with fewer samples at a time it fits on the same device;
3. the same, divided like states;
4. what is known alone, on every rank, then for each sample of a micro-batch, then divided like states.

After the second failure a rank reserves its whole device, so that no other gang is on it: how much more it needs is
still not known, and a guess in MiB would take devices that it may not need.

With the last one a plan holds just what an attempt was seen to need, divided as the plan divides it. If nothing fits
with it, nothing will.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from estimators.learning import PastAttempt
from estimators.memory import NO_EXTRA, Extra

ROOM = (4, 2)
"""How many times what is known to be missing a plan has room for, after three failures. Known is little more than what
was reserved, which was a whole device the last time."""
WHOLE_DEVICE = 2**60
"""Bytes that no device offers: as much is reserved as it does offer."""


def corrections(failed: Sequence[PastAttempt]) -> list[Extra]:
    """Corrections to add, the most first, for a trial whose runs ``failed`` all ran out of memory; no run: nothing."""
    if not failed:
        return [NO_EXTRA]

    def most(of_run: Callable[[PastAttempt], int]) -> int:
        return max(map(of_run, failed))

    def missing(run: PastAttempt) -> int:
        return run.held_bytes - run.traced_bytes

    def largest(of_run: Callable[[PastAttempt], int]) -> Callable[[PastAttempt], int]:
        return lambda run: of_run(run) * run.layout.parameter_shards

    def at_most(of_run: Callable[[PastAttempt], int]) -> Callable[[PastAttempt], int]:
        return lambda run: of_run(run) * run.layout.optimizer_shards  # ZeRO-1 may miss optimizer states, its share

    def asked_of(run: PastAttempt) -> int:
        return run.asked_bytes

    asked_bytes, asked_states = most(asked_of), most(at_most(asked_of))
    missing_bytes, known_states = most(missing), most(at_most(missing))
    held = most(largest(lambda run: run.traced_bytes + run.asked_bytes))
    if len(failed) > 1:
        held = WHOLE_DEVICE
    room = ROOM if len(failed) > 2 else ()
    return [
        *(Extra(state_bytes=max(times * known_states, asked_states), held_bytes=held) for times in room),
        Extra(rank_bytes=asked_bytes, held_bytes=held),
        Extra(state_bytes=asked_states, held_bytes=held),
        Extra(rank_bytes=missing_bytes, held_bytes=held),
        Extra(sample_bytes=most(lambda run: -(-missing(run) // run.micro_batch)), held_bytes=held),
        Extra(state_bytes=most(largest(missing)), held_bytes=held),
    ]
