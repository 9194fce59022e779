"""A service decides the same as a simulation of it: one tape of events leads to equal logs of decisions."""

from __future__ import annotations

from collections import Counter

import pytest

from placement.packing.elastic import elastic
from placement.packing.packer import pack
from placement.packing.policy import Policy
from scamp_service.control.decide.effects import Begin, MoveAttempt
from scamp_service.lifecycle import Outcome
from tests.simulation.taped import Run, draw_tape


@pytest.mark.full
@pytest.mark.parametrize("policy", [pack, elastic])
def test_simulated_and_live_logs_of_decisions_are_equal(policy: Policy) -> None:
    happened: Counter[str] = Counter()
    for seed in range(6):
        simulated = Run(draw_tape(seed), policy)
        tape = simulated.simulate()
        live = Run(tape, policy)
        live.live()
        for (at, expected), (when, effect) in zip(simulated.log, live.log, strict=False):
            assert (when, effect) == (at, expected), f"seed {seed}"
        assert len(live.log) == len(simulated.log), f"seed {seed}"
        happened["begun"] += sum(isinstance(effect, Begin) for _, effect in live.log)
        lost = (effect for _, effect in live.log if isinstance(effect, MoveAttempt))
        happened["lost"] += sum(effect.outcome is Outcome.LOST for effect in lost)
    assert happened["begun"] > 50 and happened["lost"] > 4, happened
