"""Chooses the pack that a trial joins: a process whose trials have the same frozen weights, and room for one more.

A trial that may start on a device without any gang is left to the packing policy, which gives it a process of its own;
later ones may join that. So trials spread over the devices first, and then share them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from estimators.model import MIB
from placement.model import Gang
from placement.packing.ledger import Ledger
from scamp_service.control.decide.rules.gangs import offer_choices, sized_of
from scamp_service.control.decide.snapshot import Corrections, Snapshot
from scamp_service.model import Choice, Trial


@dataclass(frozen=True, slots=True)
class Joined:
    """The ``choice`` with which a trial joins a pack on ``device``, and the ``reason``."""

    pack: str
    device: str
    choice: Choice
    shared_mib: int
    reason: str


@dataclass(slots=True)
class _Pack:
    """A pack, with its number of members."""

    key: str
    study: int
    device: str
    shared_mib: int
    size: int = 0


def shared_mib(s: Snapshot, trial: Trial, choice: Choice) -> int | None:
    """Whole MiB of frozen weights that the trial may share with others of its study; None if it shares no process.

    After an out-of-memory, its own or one of its pack, which counts as a fault of its host, it trains alone.
    """
    may_share = s.studies[trial.study_id].pack > 1 and not trial.num_oom and not trial.num_faults
    frozen_bytes = sized_of(trial).frozen_bytes
    if not may_share or not frozen_bytes or choice.plan.world_size > 1 or choice.plan.layout.recompute:
        return None
    return frozen_bytes // MIB


def join_packs(
    s: Snapshot, queue: Iterable[Trial], ledger: Ledger, learned: Corrections
) -> Mapping[int, Joined | None]:
    """Trial → the pack that it joins, which is entered into ``ledger``; None: the one that another trial of the queue
    is about to begin, so that it waits for that. Trials that neither holds for are left out."""
    if all(study.pack == 1 for study in s.studies.values()):
        return {}
    packs, joined, beginning = _packs_of(s, ledger), dict[int, Joined | None](), set[int]()
    num_free = sum(not ledger.gangs_on(device.id) for device in ledger.devices)
    for trial in queue:
        offered = offer_choices(s, trial, learned)
        choices = [choice for choice in offered if shared_mib(s, trial, choice) is not None]
        shared = shared_mib(s, trial, choices[0]) if choices else None
        if num_free > 0 or shared is None:
            num_free -= sized_of(trial).demand.num_ranks
            if shared is not None:
                beginning.add(trial.study_id)
            continue
        most = s.studies[trial.study_id].pack
        fitting = [
            (pack, choice)
            for pack in packs
            if (pack.study, pack.shared_mib) == (trial.study_id, shared) and pack.size < most
            for choice in choices
            if choice.kind in ("", ledger.device(pack.device).kind)
            and ledger.free_mib(pack.device) >= _own_mib(choice, shared)
        ]
        if fitting:
            pack, choice = min(fitting, key=lambda fit: (fit[0].size, fit[0].key))
            own_mib = _own_mib(choice, shared)
            ledger.restore(Gang(f"{trial.id}/{trial.attempt + 1}", 1, own_mib), [pack.device])
            weights = f"{shared} MiB of frozen weights" if shared else "its frozen weights"
            reason = (
                f"joins the process of {pack.size} other trial{'s' * (pack.size > 1)} on {pack.device}, where "
                f"{weights} are: it needs {own_mib} MiB more, and no device is without a trial"
            )
            pack.size += 1
            joined[trial.id] = Joined(pack.key, pack.device, choice, shared, reason)
        elif trial.study_id in beginning:
            joined[trial.id] = None
        else:
            beginning.add(trial.study_id)
    return joined


def _own_mib(choice: Choice, shared: int) -> int:
    return max(1, choice.prediction.reserved_mib - shared)


def _packs_of(s: Snapshot, ledger: Ledger) -> list[_Pack]:
    """The packs on usable devices, with the members that train."""
    study_of = {trial.id: trial.study_id for trial in s.trials}
    usable, sizes = {device.id for device in ledger.devices}, defaultdict[str, int](int)
    packs: dict[str, _Pack] = {}
    for attempt in s.attempts:
        study = study_of.get(attempt.trial_id)
        if not attempt.pack or attempt.outcome is not None or study is None or attempt.devices[0] not in usable:
            continue
        sizes[attempt.pack] += 1
        packs[attempt.pack] = _Pack(attempt.pack, study, attempt.devices[0], attempt.shared_mib, sizes[attempt.pack])
    return list(packs.values())
