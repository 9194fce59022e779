"""Trials with the same frozen weights share processes, once no device is free."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from estimators.model import MIB, Plan
from placement.model import Cluster, Device
from scamp_service.control.decide.effects import Begin
from scamp_service.control.decide.rules.gangs import ledger_of
from scamp_service.lifecycle import AttemptState, Outcome, TrialState
from scamp_service.model import Attempt, Trial
from tests.scamp_service.control.decide.snapshots import ALIVE, effects_of, study
from tests.values import attempt, sized, trial

TWO = Cluster((Device("a", "n", 0, "virtual", 96), Device("b", "n", 1, "virtual", 96)))
FROZEN_MIB, OWN_MIB = 30, 10


def waiting(number: int, **changes: Any) -> Trial:
    size = replace(sized(Plan(4), FROZEN_MIB + OWN_MIB), frozen_bytes=FROZEN_MIB * MIB + 5)
    return trial(id=number, number=number, state=TrialState.QUEUED, attempt=0, **({"sized": size} | changes))


def running(number: int, device: str, pack: str) -> tuple[Trial, Attempt]:
    mine = attempt(
        trial_id=number,
        state=AttemptState.RUNNING,
        devices=(device,),
        pack=pack,
        shared_mib=FROZEN_MIB,
        reserved_mib=FROZEN_MIB + OWN_MIB,
    )
    return trial(id=number, number=number, state=TrialState.RUNNING, attempt=mine.attempt), mine


def begun(queued: list[Trial], present: list[tuple[Trial, Attempt]], most: int = 8, **others: Any) -> list[Attempt]:
    attempts = [mine for _, mine in present]
    effects = effects_of(
        trials=[*(trial for trial, _ in present), *queued],
        attempts=attempts,
        gangs={mine.key: ALIVE for mine in attempts},
        studies={1: study(pack=most)},
        cluster=TWO,
        **others,
    )
    return [effect.attempt for effect in effects if isinstance(effect, Begin)]


def test_trials_spread_over_free_devices_and_then_share_them() -> None:
    first, second = begun([waiting(1), waiting(2)], [])
    assert {first.devices, second.devices} == {("a",), ("b",)}
    assert (first.pack, first.shared_mib, first.mib_per_rank) == (first.key, FROZEN_MIB, FROZEN_MIB + OWN_MIB)
    (third,) = begun([waiting(3)], [running(1, "a", "1/1"), running(2, "b", "2/1"), running(4, "b", "2/1")])
    assert (third.devices, third.pack, third.mib_per_rank) == (("a",), "1/1", OWN_MIB), "the smaller pack"
    assert "30 MiB of frozen weights" in third.placement_reason


def test_many_that_come_at_once_wait_for_the_first_ones_to_begin() -> None:
    starts = begun([waiting(number) for number in range(1, 9)], [])
    assert [mine.trial_id for mine in starts] == [1, 2], "one on each device"
    present = [running(1, "a", "1/1"), running(2, "b", "2/1")]
    assert {mine.pack for mine in begun([waiting(number) for number in range(3, 9)], present)} == {"1/1", "2/1"}


def test_a_pack_has_the_most_members_that_its_study_allows_and_its_device_holds() -> None:
    present = [running(1, "a", "1/1"), running(2, "b", "2/1")]
    starts = begun([waiting(number) for number in range(3, 9)], present, most=3)
    assert [mine.pack for mine in starts if mine.pack != mine.key] == ["1/1", "2/1", "1/1", "2/1"]
    assert len(starts) == 4, "no device has room for another copy of the weights"
    ledger = ledger_of(TWO, [mine for _, mine in present], 4)
    starts = begun([waiting(number) for number in range(3, 30)], present, most=12)
    assert len(starts) == sum(ledger.free_mib(device) // OWN_MIB for device in "ab")


def test_whoever_has_other_weights_or_a_fault_behind_it_trains_alone() -> None:
    present = [running(1, "a", "1/1"), running(2, "b", "2/1")]
    others = replace(waiting(3).sized, frozen_bytes=20 * MIB)  # type: ignore[type-var]
    for queued in (waiting(3, sized=others), waiting(3, num_faults=1), waiting(3, num_oom=1)):
        (alone,) = begun([queued], present)
        assert alone.pack in ("", alone.key) and alone.mib_per_rank == FROZEN_MIB + OWN_MIB
    (without,) = begun([waiting(3)], present, most=1)
    assert without.pack == "" and without.shared_mib == 0


def test_the_frozen_weights_are_reserved_as_long_as_any_member_is_left() -> None:
    (_, first), (_, second), (_, third) = (running(number, "a", "1/1") for number in (1, 2, 3))
    base = ledger_of(TWO, [first], 4).gangs_on("a")["1/1"]
    assert second.mib_per_rank == base - FROZEN_MIB
    for left in ([first, second, third], [second, third], [third]):
        held = sum(ledger_of(TWO, left, 4).gangs_on("a").values())
        assert held == FROZEN_MIB + len(left) * (base - FROZEN_MIB)
    ended = replace(first, outcome=Outcome.DONE)
    assert sum(ledger_of(TWO, [ended, second], 4).gangs_on("a").values()) == 2 * base - FROZEN_MIB
