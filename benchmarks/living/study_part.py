"""Runs one study in ScaMP under a static and under the default policy, and with Ray Tune; and simulated."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, median

from benchmarks.living.alone import FOLDER, Cost, Training
from benchmarks.living.drawn import BATCH, DEVICE_MIB, NUM_DEVICES, WORKLOAD, Drawn, draw, draw_small
from benchmarks.living.service import Ran, serving
from benchmarks.running.process import last_line
from benchmarks.running.results import Finding
from estimators.model import Plan
from scamp_service.settings import Settings
from scamp_service.simulation.replay import ReplayOptions, Submitted, simulate
from scamp_service.sizing.calibration import calibrate_cpu_quickly
from scamp_service.sizing.cluster_file import cluster_named
from scamp_service.study.parse import parse_study
from scamp_service.study.user_code.bundling import bundle_code

TITLE = "A study on virtual devices"
HEADER = (
    "static s", "Tune s", "ScaMP s", "bound s", "/ static", "/ Tune", "/ bound", "simulated s", "differs", "study",
)  # fmt: skip
TOLERANCE = 0.02
"""Largest difference of final losses between systems, as a share: their plans add the same numbers in another order."""
ABOUT = f"""\
The same trainings of GPTs of different sizes, in a user's file, on {NUM_DEVICES} virtual devices of {DEVICE_MIB}
MiB. All candidates are known from the start; their sizes and learning rates are drawn. *Static* is ScaMP
with the policy `static-{NUM_DEVICES}`: each trial has {NUM_DEVICES} devices for itself, which the largest needs,
first come first served. *Tune* is a `Tuner` of Ray Tune with as many devices for each trial, which trains by the
code of our ranks. *ScaMP* is a service with default settings. Seconds are those from the submission of the study to
its end, in a service that has started, and those of `Tuner.fit` in a Ray that has started. *Bound* is the processor
time of the same trainings, one after another on one rank without limits of memory, divided by the number of cores.
The final losses of all are equal to {TOLERANCE:.0%}. *Simulated* is the study in virtual time under the default
policy. Its gangs take the seconds that their trainings took alone on the machine, and start as soon as those of the
live study did (the median); ranks that start take the processor time of those that start with the service, and a trace
what the service took for a trial besides its ranks."""


@dataclass(frozen=True)
class Case:
    """A drawn study."""

    seed: int
    num_trials: int
    steps: int
    is_small: bool = False

    def drawn(self) -> Drawn:
        """Its candidates."""
        return (draw_small if self.is_small else draw)(self.seed, self.num_trials, self.steps)

    def __str__(self) -> str:
        return f"{self.num_trials} trials of {self.steps} steps, seed {self.seed}"


def cases(quick: bool, seed: int) -> Sequence[Case]:
    return [Case(seed, 4, 4, True)] if quick else [Case(seed, 24, 20)]


@dataclass(frozen=True, slots=True)
class Overheads:
    """Seconds of a launch, and processor seconds of a rank's start and of the service's work for a trial."""

    start_seconds: float
    rank_seconds: float
    trace_seconds: float


@dataclass(frozen=True, slots=True)
class Result:
    """Seconds of the study in each system, and what the live ones used."""

    static_seconds: float
    tune_seconds: float
    scamp_seconds: float
    bound_seconds: float
    simulated_seconds: float
    overheads: Mapping[str, float]
    processor: Mapping[str, float] = field(default_factory=dict)
    static_processor: Mapping[str, float] = field(default_factory=dict)
    ranks: list[int] = field(default_factory=list)

    @property
    def simulated_pct(self) -> float:
        """By how many percent the simulated makespan differs from the live one."""
        return 100 * abs(self.simulated_seconds / self.scamp_seconds - 1)

    def row(self) -> list[str]:
        seconds = (self.static_seconds, self.tune_seconds, self.scamp_seconds, self.bound_seconds)
        ratios = [self.scamp_seconds / other for other in (self.static_seconds, self.tune_seconds, self.bound_seconds)]
        simulated = [f"{self.simulated_seconds:.1f}", f"{self.simulated_pct:.1f} %"]
        return [*(f"{second:.1f}" for second in seconds), *(f"{ratio:.2f}" for ratio in ratios), *simulated]


def measure(case: Case, seconds: float) -> Result:
    """Run the study in each system. Raises ``RuntimeError`` if their final losses differ."""
    study = case.drawn()
    static = run(study, f"static-{study.num_devices}", seconds, wide(study))
    trainings = [_training(study, n, wide(study)) for n in _numbers(study)]
    tune = json.loads(in_process("with_tune", trainings, seconds, study.num_devices))
    scamp = run(study, "pack", seconds)
    single = [_training(study, n, Plan(BATCH)) for n in _numbers(study)]
    gangs = [_training(study, n, scamp.plan_of(n)) for n in _numbers(study)]
    print(
        f"  {case}: static {static.seconds:.1f} s, Tune {tune['seconds']:.1f} s, ScaMP {scamp.seconds:.1f} s",
        flush=True,
    )
    costs = [Cost(**load) for load in json.loads(in_process("alone", [*single, *gangs], seconds))]
    alone, together = costs[: len(single)], costs[len(single) :]
    losses = {"static": static.values(), "Ray Tune": dict(enumerate(tune["losses"])), "ScaMP": scamp.values()}
    _expect_equal({n: cost.loss for n, cost in enumerate(alone)}, losses)
    cores = len(os.sched_getaffinity(0))
    # A gang of more ranks than there are cores takes that many times as long, also alone: virtual time adds it again
    measured = {
        (n, str(scamp.plan_of(n))): cost.clock_seconds / max(1.0, scamp.plan_of(n).world_size / cores) / study.steps
        for n, cost in zip(_numbers(study), together, strict=True)
    }
    overheads = Overheads(
        median(attempt.started_at - attempt.created_at for attempt in scamp.attempts if attempt.started_at),
        scamp.started["ranks"] / study.num_devices,
        sum(seconds for kind, seconds in scamp.processor.items() if kind != "ranks") / len(scamp.trials),
    )
    return Result(
        static.seconds,
        tune["seconds"],
        scamp.seconds,
        sum(cost.rank_seconds[0] for cost in alone) / cores,
        simulated_seconds(study, measured, overheads),
        asdict(overheads),
        scamp.processor,
        static.processor,
        [len(attempt.devices) for attempt in scamp.attempts],
    )


def run(study: Drawn, policy: str, seconds: float, plan: Plan | None = None) -> Ran:
    """The study in a service of its own with this policy, and with this plan for all candidates if one is given."""
    hint = {} if plan is None else {"plan": {"micro_batch": plan.micro_batch, "dp_shard": plan.dp_shard}}
    with serving(policy=policy, virtual_devices=study.num_devices, device_mib=DEVICE_MIB) as served:
        return served.run(study.spec() | hint, seconds)


def simulated_seconds(study: Drawn, measured: Mapping[tuple[int, str], float], overheads: Overheads) -> float:
    """The makespan of the study in virtual time, with these seconds of a step by trial and plan."""
    settings = Settings(virtual_devices=study.num_devices, device_mib=DEVICE_MIB)
    code = bundle_code(FOLDER / "study.yaml", WORKLOAD)
    submitted = Submitted(parse_study(study.spec()), code)
    with tempfile.TemporaryDirectory(prefix="scamp-live-") as folder:
        settings = settings.model_copy(update={"data_dir": Path(folder)})
        calibrate_cpu_quickly(settings.data_dir)  # plans that were not measured are compared by it
        cluster = cluster_named(f"1x{study.num_devices}xvirtual", settings)
        options = ReplayOptions(
            Path(folder, "profiles"),
            start_seconds=overheads.start_seconds,
            rank_seconds=overheads.rank_seconds,
            trace_seconds=overheads.trace_seconds,
            measured=measured,
        )
        outcome = simulate([submitted], cluster, options)
    if outcome.why_unfinished or outcome.reasons:
        raise RuntimeError(f"the simulation: {outcome.why_unfinished or outcome.reasons[0]}")
    return outcome.makespan


def in_process(module: str, trainings: Sequence[Training], seconds: float, num_devices: int = NUM_DEVICES) -> str:
    """The last line that this module of ours prints for the trainings, in a process of its own."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump([asdict(training) for training in trainings], file)
        file.flush()
        last = str(num_devices) if module == "with_tune" else f"{seconds}"
        return last_line("-m", f"benchmarks.living.{module}", file.name, last, seconds=2 * seconds)


def _numbers(study: Drawn) -> range:
    return range(len(study.candidates))


def _training(study: Drawn, number: int, plan: Plan) -> Training:
    every = study.spec()["budget"]["report_every"]
    fields = {
        plan_field.name: getattr(plan, plan_field.name) for plan_field in dataclasses.fields(plan) if plan_field.init
    }
    return Training(study.candidates[number], fields, study.seed + number, study.steps, every)


def wide(study: Drawn) -> Plan:
    """The plan that uses all devices, with which even the largest candidate fits."""
    return Plan(BATCH // study.num_devices, dp_shard=study.num_devices)


def _expect_equal(expected: Mapping[int, float], values: Mapping[str, Mapping[int, float]]) -> None:
    for system, losses in values.items():
        for number, loss in losses.items():
            if abs(loss / expected[number] - 1) > TOLERANCE:
                raise RuntimeError(f"{system}: trial {number} ends with a loss of {loss}, and alone {expected[number]}")


def figures(results: Sequence[Result]) -> dict[str, float]:
    return {
        "live_static_ratio": fmean(result.scamp_seconds / result.static_seconds for result in results),
        "live_tune_ratio": fmean(result.scamp_seconds / result.tune_seconds for result in results),
        "live_bound_ratio": fmean(result.scamp_seconds / result.bound_seconds for result in results),
        "sim_live_pct": max(result.simulated_pct for result in results),
    }


def notes(findings: Sequence[Finding]) -> list[str]:
    """Where processor time went, in each system."""
    lines = []
    for finding in findings:
        for name in ("processor", "static_processor"):
            used = ", ".join(f"{kind} {seconds:.1f} s" for kind, seconds in finding.values[name].items())
            lines.append(f"  {finding.case}, {'ScaMP' if name == 'processor' else 'static'}: {used}")
    return lines
