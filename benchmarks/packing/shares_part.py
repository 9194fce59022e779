"""The time that unlike shares of a batch would save a study on two kinds of GPUs: offered to every trial, or only where
no kind has enough devices, as studies do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pstdev

from benchmarks.packing.costs import Training, draw
from benchmarks.packing.mixed_part import KINDS, SPEEDS, devices_of
from placement.exact.shares import Member, Shares, best_shares
from placement.model import Cluster, Device, Placement, Queued, Shape
from placement.packing.allotment import allot
from placement.packing.ledger import Ledger
from placement.packing.packer import pack
from placement.packing.policy import Decision, Policy
from placement.packing.reasons import DeviceRule
from placement.packing.round import Round
from placement.simulation.progress import Domains
from placement.simulation.schedule import Job, ScheduleOptions, schedule

SEEDS = 10
NUMBERS = (4, 8, 16, 32, 200)
NEEDED = 8

TITLE = "Unlike shares of the batch on V100-16 and T4"
HEADER = ("mean", "spread", "least", "most", "gangs", "trials")
ABOUT = f"""\
Makespans with unlike shares over those without, for {SEEDS} seeds: mean, standard deviation, extremes, and how many
gangs take shares. Trials are those of the tables above, with shares in whole samples by the speed of data sheets. In
the first rows each trial on 16 V100-16 and 16 T4 also offers, beside its plans for one kind, half of the ranks on each.
Gangs of two kinds are on two nodes at least: 8 ranks are on two nodes anyway, 2 and 4 cost what they cost on nodes of
their own. All trials that wait take shares at once, but only if the last of them then ends at least 2 % before `pack`
could end. Hardly any do, because `pack` keeps both kinds busy; so studies do not offer shares there. In the last row
every trial needs {NEEDED} devices of a cluster of {NEEDED // 2} V100-16 and {NEEDED // 2} T4, so all gangs have both:
there studies take shares (`placement/exact/traced_shares.py`). A step is as slow as its slowest rank, messages
included."""


@dataclass(frozen=True)
class Case:
    """Drawn studies of so many trials; ``is_offered`` on a cluster with enough devices of each kind."""

    num_trials: int
    is_offered: bool
    seed: int

    def __str__(self) -> str:
        return f"{self.num_trials}{'' if self.is_offered else ', which need both kinds'}"


@dataclass(frozen=True, slots=True)
class Result:
    """Makespans with shares over those without, and the gangs that took shares."""

    is_offered: bool
    ratios: list[float]
    num_taken: int

    def row(self) -> list[str]:
        figures = fmean(self.ratios), pstdev(self.ratios), min(self.ratios), max(self.ratios)
        return [*(f"{figure:.3f}" for figure in figures), str(self.num_taken)]


def cases(quick: bool, seed: int) -> Sequence[Case]:
    numbers = NUMBERS[:1] if quick else NUMBERS
    return [*(Case(number, True, seed) for number in numbers), Case(NUMBERS[2], False, seed)]


def measure(case: Case, seconds: float) -> Result:
    """Simulate the studies with and without shares; ``seconds`` is not used."""
    ratios, num_taken = [], 0
    for seed in range(case.seed, case.seed + SEEDS):
        trials = draw(seed, case.num_trials)
        if case.is_offered:
            with_shares, without = Offering(trials), [Job(f"{n}", trial.options) for n, trial in enumerate(trials)]
            devices = devices_of(4, 4)
            ours = _makespan(with_shares.jobs, devices, with_shares)
            ratios.append(ours / _makespan(without, devices, pack))
            num_taken += with_shares.num_taken
        else:
            devices = devices_of(1, NEEDED // 2)
            gangs = [(trial.static, unlike(trial.static, trial.static.seconds or 0.0, trial.batch)) for trial in trials]
            with_, equal = ([Job(f"{n}", (pair[way] or pair[0],)) for n, pair in enumerate(gangs)] for way in (1, 0))
            ratios.append(_makespan(with_, devices, pack) / _makespan(equal, devices, pack))
            num_taken += sum(shares is not None for _, shares in gangs)
    return Result(case.is_offered, ratios, num_taken)


def _makespan(jobs: Sequence[Job], devices: Sequence[Device], policy: Policy) -> float:
    speeds = {device.id: SPEEDS[device.kind] for device in devices}
    return schedule(jobs, Cluster(tuple(devices)), policy, ScheduleOptions(domains=Domains({}, speeds))).makespan


def unlike(shape: Shape, seconds: float, batch: int) -> Shape | None:
    """The shape with half of its ranks on each kind, of ``seconds`` on one kind; None if its batch is too small."""
    fast, slow = (Member(1 / SPEEDS[kind], 0, 0) for kind in KINDS)
    num = shape.num_ranks
    shares = best_shares([fast] * (num // 2) + [slow] * (num - num // 2), batch) if num > 1 else None
    if not isinstance(shares, Shares) or len(set(shares.samples)) == 1:
        return None
    waiting = seconds * (shape.communication_share or 0.0)
    all_seconds = waiting + (seconds - waiting) * shares.seconds / (batch / num)
    # Speeds of devices slow the slower ranks down by their share of the largest one.
    largest = max(shares.samples)
    alone = waiting + (seconds - waiting) * largest / (batch / num)
    assert alone <= all_seconds * (1 + 1e-9)
    mibs = (shape.mib_per_rank,) * num
    return replace(shape, seconds=alone, communication_share=waiting / alone, mibs=mibs, samples=shares.samples)


class Offering:
    """``pack`` on trials that offer unlike shares as well, which those that wait take if they end sooner with them."""

    def __init__(self, trials: Sequence[Training]) -> None:
        self._alike = {f"{n}": trial.options for n, trial in enumerate(trials)}
        self._unlike = {f"{n}": list(_offered(trial)) for n, trial in enumerate(trials)}
        self.jobs = [Job(name, (*self._alike[name], *self._unlike[name])) for name in self._alike]
        self.num_taken = 0

    def __call__(self, queue: Sequence[Queued], ledger: Ledger, seconds_left: Mapping[str, float] = {}) -> Decision:
        alike = [replace(queued, shapes=self._alike[queued.id]) for queued in queue]
        packed = pack(alike, ledger, seconds_left)
        if len(queue) > len(ledger.devices) or not all(self._unlike[queued.id] for queued in queue):
            return packed
        sharing = [replace(queued, shapes=tuple(self._unlike[queued.id])) for queued in queue]
        choices = allot(sharing, ledger, seconds_left).first_choices
        with Round(ledger, DeviceRule.FULLEST) as packing_round:
            if not all(packing_round.start(queued, choices[queued.id]) for queued in sharing):
                return packed
            shared = packing_round.decision().placements
        if self._end(sharing, shared, seconds_left) > 0.98 * self._end(alike, packed.placements, seconds_left):
            return packed
        self.num_taken += len(shared)
        shifted = (
            replace(placement, choice=placement.choice + len(self._alike[placement.gang.id])) for placement in shared
        )
        return Decision(tuple(shifted), {})

    def _end(self, queue: Sequence[Queued], placed: Sequence[Placement], seconds_left: Mapping[str, float]) -> float:
        """Seconds until all trials have ended, at least: those that wait start when the first other one ends."""
        by_id, ends = {queued.id: queued for queued in queue}, list[float]()
        for placement in placed:
            shape = by_id.pop(placement.gang.id).shapes[placement.choice]
            parts = shape.samples or (1,) * shape.num_ranks
            kinds = (device.split("/")[0] for device in placement.devices)
            slow = max(part / SPEEDS[kind] for part, kind in zip(parts, kinds, strict=True)) / max(parts)
            ends.append((shape.seconds or 0.0) * slow)
        first = min([*ends, *seconds_left.values()], default=0.0)
        waiting = (first + min(shape.seconds or 0.0 for shape in queued.shapes) for queued in by_id.values())
        return max([*ends, *waiting], default=0.0)


def _offered(trial: Training) -> Sequence[Shape]:
    """The shapes of a trial with unlike shares, each with fewer seconds than the one before."""
    shapes: list[Shape] = []
    for option, (apart, communication_share) in zip(trial.options, trial.apart, strict=True):
        seconds = option.seconds if option.num_ranks == NEEDED else apart
        is_near = option.num_ranks == NEEDED
        adjusted = option if is_near else replace(option, communication_share=communication_share)
        shape = unlike(adjusted, seconds or 0.0, trial.batch)
        if shape is not None and (not shapes or (shape.seconds or 0.0) < (shapes[-1].seconds or 0.0)):
            shapes.append(shape)
    return shapes


def figures(results: Sequence[Result]) -> dict[str, float]:
    """Mean ratios where shares are offered to every trial, and where no kind has enough devices."""
    ratios = {
        name: [ratio for result in results if result.is_offered is offered for ratio in result.ratios]
        for name, offered in (("shares_offered_ratio", True), ("shares_needed_ratio", False))
    }
    return {name: fmean(values) for name, values in ratios.items() if values}
