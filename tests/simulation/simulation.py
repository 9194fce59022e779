"""A cluster in virtual time for the real controller, store and decisions: ranks, messages and faults are simulated.

Faults, all drawn from one seeded generator: ranks die, freeze or never start, messages to gangs are lost or doubled,
reports arrive late (even after the next attempt has begun), whole nodes vanish and come back, the database is away for
a while, and wall clocks jump. Two controllers take part in the election; each crashes before or after any write to the
database and any call to the executor, and each may stand still there while the other one takes over. The disk of the
checkpoints is full for a while, some candidates need far more memory after half of their steps, the sink is away while
ranks train and write checkpoints, devices join late, and one leaves for good.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from placement.model import Device
from scamp_service.lifecycle import CONTROLLER_LEASE, LIVE_STUDIES, Origin, Outcome, TrialState
from scamp_service.model import Json, Lease, Trial
from scamp_service.store.store import Store
from scamp_service.study.objectives import Objectives
from tests.simulation.candidates import SLOW, fits_when_grown, objective
from tests.simulation.faults import Clock, Faults
from tests.simulation.processes import ControllerProcess
from tests.simulation.world import World

_HALVING = {"min_steps": 2, "reduction_factor": 2}
STOPPINGS = [
    {"rule": "asha", **_HALVING},
    {"rule": "none"},
    {"rule": "asha", **_HALVING, "promote": True},
    [{"rule": "hyperband", **_HALVING, "promote": True}, {"rule": "patience", "reports": 1}],
    {"rule": "pbt", "mutate": ["slow"], "quantile": 0.5},
]
"""One for each way in which trials end early: at once, never, after they were paused, and replaced by copies."""
SCORE = {"metric": "score", "direction": "maximize"}
PEAK = {"metric": "predicted.peak_mib", "direction": "minimize"}
OBJECTIVES = {
    4: [SCORE, PEAK],
    8: [PEAK, {"metric": "predicted.ranks", "direction": "minimize"}],
}
"""Objectives by the remainder of the seed; the others have one that is measured."""
EVOLUTION = {"name": "evolution", "population_size": 2, "sample_size": 1, "inherit": True}
LONGEST_STALL_SECONDS = 400.0
TICK_SECONDS = 0.7
LONGEST_SKIP_SECONDS = 10.0
"""Limits that controllers set, such as how long a trial waits after a fault, are checked at least as often."""


@dataclass
class Simulation:
    """One seed: studies, a cluster, faults; ``run`` ends when every study has, or raises when it never does."""

    store: Store
    seed: int
    faults: Faults = field(default_factory=Faults)
    num_controllers: int = 2
    num_crashes: int = 0
    num_pauses: int = 0
    num_acts: int = 0  # calls of controllers that change something
    is_quiet: bool = False  # the leader had nothing to do in this cycle
    step_seconds: float = TICK_SECONDS  # how far the last cycle has moved the world

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.is_large = self.seed % 4 == 0
        self.skips = self.seed % 16 != 0  # time in which nothing can happen
        self.clock = Clock()
        nodes = self.rng.choice([1, 2])
        devices = [Device(f"n{n}/{i}", f"n{n}", i, "virtual", 96) for n in range(nodes) for i in range(4)]
        self.world = World(self.store, self.clock, self.rng, self.faults, devices)
        self.tokens = 0
        self.store.studies.create(self.spec(0), now=self.clock.now)
        self.num_to_come = self.num_later_studies()
        if self.num_to_come:
            self.world.after(self.rng.uniform(0.0, 10.0), self._submit)
        self.controllers = [ControllerProcess(self, number) for number in range(self.num_controllers)]

    def num_later_studies(self) -> int:
        return self.rng.choice([0, 1])

    def _submit(self) -> None:
        self.store.studies.create(self.spec(1), now=self.clock.now)
        self.num_to_come -= 1

    def new_token(self) -> str:
        self.tokens += 1
        return f"token-{self.tokens}"

    def fence(self, lease: Lease) -> Store:
        """The store of the leader; a mutant may leave the fence out."""
        return self.store.fenced(CONTROLLER_LEASE, lease)

    def spec(self, number: int) -> Json:
        is_evolution = self.seed % 3 == 0
        grows: Json = {"grows": {"choice": [0, 3]}} if self.seed % 4 == 1 else {}
        objectives, stopping = OBJECTIVES.get(self.seed % 11, [SCORE]), self.rng.choice(STOPPINGS)
        if objectives != [SCORE]:  # patience knows one objective, and there is none to judge if all are predicted
            stopping = stopping[0] if isinstance(stopping, list) else stopping
            stopping = stopping if SCORE in objectives else {"rule": "none"}
        may_repeat = stopping in STOPPINGS[:3] and SCORE in objectives and not is_evolution
        return {
            "name": f"study {number}",
            "workload": "vit_digits",
            "objective": objectives[0],
            "objectives": objectives if len(objectives) > 1 else [],
            "space": {
                "mib": {"choice": [10, 30, 60, 90, 120]},
                "ranks": {"choice": [1, 2, 4]},
                "spike": {"choice": [0, 15]},
                "most_ranks": {"choice": [1, 4]},
                "slow": {"choice": [1, SLOW]},
                "breaks": {"choice": [0, 1]},
                **grows,
            },
            "search": {"sampler": EVOLUTION if is_evolution else "random", "seed": self.seed},
            "stopping": stopping,
            "repeats": 3 if may_repeat and self.seed % 5 < 2 else 1,
            "budget": {
                "trials": (self.rng.randint(3, 10) if self.is_large else self.rng.randint(2, 4)) * (1 + is_evolution),
                "steps": 8,
                "report_every": 2,
                "max_lost": 1000,
                "max_oom": 10,
                "stall_seconds": LONGEST_STALL_SECONDS,
            },
        }

    def run(self, limit_seconds: float = 20_000.0) -> None:
        end = self.clock.now + limit_seconds
        while not self.has_ended:
            assert self.clock.now < end, f"seed {self.seed}: not finished after {limit_seconds} virtual seconds"
            self.cycle()
            assert not self.world.violations, f"seed {self.seed}: {self.world.violations[0]}"
        self.world.outage_until = 0.0
        self.world.advance(self.clock.now + 120.0)  # let the latest of the late reports arrive
        self.check_end()
        assert not self.world.violations, f"seed {self.seed}: {self.world.violations[0]}"

    @property
    def has_ended(self) -> bool:
        """Whether every study has, and no attempt is left."""
        is_live = any(study.state in LIVE_STUDIES for study in self.store.studies.page())
        return not (self.num_to_come or is_live or self.store.attempts.open())

    def cycle(self) -> None:
        """Every controller has its turn, and the world moves on: a little, or to what happens next.

        While time was skipped, the leader has renewed its lease.
        """
        self.world.disturb(self.step_seconds / TICK_SECONDS)
        self.is_quiet = False
        processes = self.rng.sample(self.controllers, len(self.controllers))
        if self.step_seconds > TICK_SECONDS:
            processes.sort(key=lambda process: not process.election.leads)
        for process in processes:
            process.tick()
        self.check_ledger()
        self.step_seconds = self.quiet_seconds() if self.is_quiet and self.skips else TICK_SECONDS
        self.world.advance(self.clock.now + self.step_seconds)

    def quiet_seconds(self) -> float:
        """Seconds until a controller that had nothing to do may have something to do, and a part of a cycle more."""
        now, agenda = self.clock.now, self.world.agenda
        due = [agenda[0][0]] if agenda else []
        due += [when for process in self.controllers for when in process.due]
        soonest = min((when for when in due if when > now), default=math.inf)
        after = soonest - now + self.rng.uniform(0.0, TICK_SECONDS)
        return max(TICK_SECONDS, min(after, LONGEST_SKIP_SECONDS))

    def check_ledger(self) -> None:
        reserved: dict[str, int] = {}
        for attempt in self.store.attempts.open():
            self.world.insist(len(set(attempt.devices)) == attempt.plan.world_size, f"{attempt.key} is not whole")
            for device in attempt.devices:
                reserved[device] = reserved.get(device, 0) + attempt.mib_per_rank
        self.world.insist(all(mib <= 96 for mib in reserved.values()), f"over-subscribed {reserved}")

    def check_end(self) -> None:
        for study in self.store.studies.page():
            trials = self.store.trials.page(study.id)
            searched = [trial.number for trial in trials if trial.origin is Origin.SEARCH]
            assert len(searched) == study.spec["budget"]["trials"], "none lost or doubled"
            assert [trial.number for trial in trials] == list(range(len(trials))), "none lost or doubled"
            for trial in trials:
                self.check_trial(trial)

    def completed_repeats(self, trial: Trial) -> list[Trial]:
        """The completed trials that repeat this one with other seeds."""
        completed = self.store.trials.page(trial.study_id, states=[TrialState.COMPLETED])
        return [other for other in completed if other.is_repeat and other.parent_id == trial.id]

    def check_trial(self, trial: Trial) -> None:
        where, devices = f"seed {self.seed}, trial {trial.id}", len(self.world.devices)
        assert trial.state in (TrialState.COMPLETED, TrialState.PRUNED, TrialState.INFEASIBLE), f"{where}: {trial}"
        # A controller that begins believes the wall clock: how long does the study wait for nodes that join?
        is_misled = self.world.has_jumped and self.world.term > 1
        attempts = self.store.attempts.of_trial(trial.id)
        ran_out = bool(attempts) and attempts[-1].outcome is Outcome.OUT_OF_MEMORY
        returns = trial.plan is not None and not ran_out  # the devices of its plan are waited for
        is_whole = returns or not self.world.num_lost_nodes
        may_fit = is_whole and not is_misled and not trial.params.get("grows")
        may_fit = may_fit and trial.params["mib"] + trial.params.get("spike", 0) <= 60
        if trial.state is TrialState.INFEASIBLE and may_fit and trial.origin is Origin.SEARCH and not trial.parent:
            num_devices = len([d for d in self.world.devices if d.id not in self.world.absent])
            assert trial.params["ranks"] > num_devices, f"{where}: it fits on {num_devices} devices"
        if trial.params.get("grows") and not self.world.was_incomplete and fits_when_grown(trial.params, devices):
            # The second failure reserves a whole device; a third shows that the trial has outgrown one.
            assert trial.num_oom <= 3 and trial.state is not TrialState.INFEASIBLE, f"{where}: {trial}"
        if trial.state is TrialState.COMPLETED:
            objectives = Objectives.of_spec(self.store.studies.get(trial.study_id).spec)
            of_seeds = [trial.repeats[0]] if trial.repeats else []
            of_seeds += [tuple(other.values or (other.value,)) for other in self.completed_repeats(trial)]
            assert trial.repeats == (tuple(of_seeds) if len(of_seeds) > 1 else ()), f"{where}: another mean"
            of_objectives: Sequence[float | None] = objectives.values_of(trial) or ()
            if trial.repeats:
                mean = fmean(score for score, *_ in trial.repeats if score is not None)
                assert of_objectives[0] == trial.value == mean, f"{where}: another mean"
                of_objectives = (trial.repeats[0][0], *of_objectives[1:])
            values = dict(zip(objectives.names, of_objectives, strict=True))
            expected = objective(trial.id, trial.attempt, trial.step)
            assert values.get("score", expected) == expected, f"{where}: value of another attempt"
            assert trial.repeats or trial.value == values[objectives.leading.metric], f"{where}: not among {values}"
        steps = self.store.studies.get(trial.study_id).spec["budget"]["steps"]
        if trial.state is TrialState.COMPLETED and (trial.step == steps or not objectives.measured):
            done = [a.attempt for a in attempts if a.outcome is Outcome.DONE]  # those before the last one paused it
            assert done[-1:] == [trial.attempt] == [self.world.completed[trial.id]], f"{where}: completed by {done}"
        stored = {(m.trial_id, m.attempt, m.seq): m for m in self.store.reports.metrics(trial.id)}
        reported = [m.step for m in stored.values()]
        assert len(set(reported)) == len(reported), f"{where}: a step counts twice"
        newest: dict[int, tuple[int, int]] = {}
        for (trial_id, attempt, seq), value in self.world.acknowledged.items():
            if trial_id == trial.id:
                newest[round(value)] = max(newest.get(round(value), (0, 0)), (attempt, seq))
        assert sorted(newest) == sorted(reported), f"{where}: acknowledged {sorted(newest)}, stored {sorted(reported)}"


class OneShotSimulation(Simulation):
    """The same with studies of one-shot search, whose parts come one after another."""

    def spec(self, number: int) -> Json:
        return {
            "name": f"study {number}",
            "workload": "vit_digits",
            "objective": {"metric": "score", "direction": "maximize"},
            "space": {"slow": {"choice": [1, 2, 3, 4, 5]}},
            "fixed": {"mib": 30, "ranks": 1, "spike": 0},
            "search": {"sampler": "random", "seed": self.seed, "one_shot": {"candidates": 5, "best": 2, "steps": 12}},
            "stopping": {"rule": "none"},
            "budget": {"trials": 8, "steps": 8, "report_every": 2, "max_lost": 1000, "max_oom": 10},
        }
