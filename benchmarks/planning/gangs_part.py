"""Compares predicted with measured seconds of an optimizer step of gangs: real ranks on gloo, over all axes.

The prediction uses a calibration of the same run. Ranks are processes that stay warm from case to case and run the code
of training; the seconds of a step are those of its slowest rank, and the median over steps counts.
"""

from __future__ import annotations

import atexit
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import FileStore
from torch.distributed.device_mesh import DeviceMesh

from benchmarks.covering import divided
from benchmarks.estimating import zoo
from benchmarks.estimating.ranks import Planned
from benchmarks.running.process import last_line
from benchmarks.running.results import Finding
from estimators.devices.communication import message_seconds, step_time
from estimators.devices.kind import DeviceKind
from estimators.model import Layout, Plan
from estimators.pipelining.schedules import SCHEDULES
from estimators.tracing.tracer import trace
from estimators.work import StepWork
from placement.pipelining.shared_cores import seconds_on
from placement.pipelining.simulator import StageCost, simulate_step
from scamp_service.sizing.calibration import DEVICE_KIND
from workloads.function import FunctionWorkload
from workloads.loading import BUILT_INS, load_workload
from workloads.parallel.apply import rank_part, spread_optimizer
from workloads.protocol import Chain, Workload
from workloads.sandbox.recipe import recipe_of
from workloads.training.building import build_model
from workloads.training.gang import process_group
from workloads.training.samples import rank_slices
from workloads.training.step import train_step
from workloads.training.warm_up import prepare_process, warm_up

NUM_WARM = 2
MEASURED_SECONDS = 2.5
FEWEST_STEPS, MOST_STEPS = 5, 20
NUM_TRIES = 2
ROUNDS = 3  # of the calibration
QUIET = 0.1  # if other processes take more than this share of the cores, a case is measured again
CALIBRATION_SECONDS = 600
UNSEEN_SHARE = 0.4
FORWARD_SHARE = 1 / 3
"""Assumed share of the forward pass in the time of a stage."""
TITLE = "Seconds of a step of gangs"
HEADER = ("predicted ms", "measured ms", "error", "scaled", "wait", "others", "case")
ABOUT = f"""\
Wall-clock seconds of an optimizer step of real ranks on gloo that share this machine's cores, predicted after
`scamp calibrate` in the same run. "Wait" is the predicted share of the step in which ranks wait for communication (in
pipelines also for other stages). "Others" is the share of the cores that other processes took meanwhile. If others took
more than {100 * QUIET:g} % of the cores, the case is measured again, and the quieter time counts. "Scaled" is the error
if the ranks share only the cores that the others left, which a user cannot know. Cases whose name ends with "(unseen)"
were drawn by the seed, and were not looked at while the prediction was made."""


@dataclass(frozen=True)
class Gang(Planned):
    """A model under a plan of several ranks: a built-in workload, or a model of ``divided.py`` or of the zoo."""

    model: str
    params: dict[str, Any]
    plan: Plan
    unseen: bool = False
    quick: bool = False

    def workload(self) -> Workload:
        if self.model in BUILT_INS:
            return load_workload(self.model, None)(self.params)
        make = divided.make if self.model in divided.MODELS else zoo.make
        return FunctionWorkload(make, {"model": self.model, **self.params})

    @property
    def name(self) -> str:
        """The model and its batch, whose plans are compared with each other."""
        return " ".join([self.model, *(f"{name}={value}" for name, value in self.params.items())])

    def __str__(self) -> str:
        return f"{self.name}: {self.plan}{' (unseen)' if self.unseen else ''}"


def cases(quick: bool, seed: int) -> Sequence[Gang]:
    """All cases, or a small one if ``quick``. ``seed`` draws the unseen cases."""
    if quick:
        return [Gang("stdlib_gpt", {"depth": 4, "width": 64}, Plan(4, 4, pp=2), quick=True)]
    every, source = list(_cases()), random.Random(seed)
    unseen = set(source.sample(range(len(every)), int(UNSEEN_SHARE * len(every))))
    return [replace(gang, unseen=number in unseen) for number, gang in enumerate(every)]


def _cases() -> Iterator[Gang]:
    """All plans of a model train on the same batch."""
    yield from _plans("stdlib_gpt", {"depth": 4, "width": 128}, _transformer(16))
    yield from _plans("stdlib_gpt", {"depth": 4, "width": 384}, _transformer(8)[::2])
    yield from _plans("vit_digits", {"depth": 4, "width": 192, "patch": 1}, _transformer(16)[1::2])
    yield from _plans("vit_digits", {"depth": 6, "width": 96}, _transformer(32)[::3])
    small = [Plan(8, spatial=2), Plan(8, spatial=4), Plan(4, spatial=2, dp_shard=2)]
    volumes = [*small, Plan(4, dp_shard=2), Plan(4, dp_replicate=2, zero1=True), Plan(2, dp_shard=4)]
    yield from _plans("unet3d_blobs", {"side": 16, "width": 8}, volumes)
    images = [Plan(4, spatial=2), Plan(2, dp_shard=2), Plan(2, dp_replicate=2, zero1=True)]
    yield from _plans("unet", {"width": 16, "side": 64}, images)
    yield from _plans("separable", {"width": 64}, [*images, Plan(2, spatial=2, dp_shard=2)])
    sequences = [Plan(8, tp=2), Plan(4, dp_shard=2), Plan(2, 2, dp_shard=2), Plan(2, dp_shard=4), Plan(8, tp=4)]
    yield from _plans("conformer", {"width": 128, "size": 128}, sequences)


def _plans(model: str, params: dict[str, Any], plans: Sequence[Plan]) -> Iterator[Gang]:
    assert len({plan.batch for plan in plans}) == 1
    for plan in plans:
        yield Gang(model, params, plan)


def _transformer(batch: int) -> list[Plan]:
    half, quarter = batch // 2, batch // 4
    return [
        Plan(half, dp_shard=2),
        Plan(batch, tp=2),
        Plan(half, dp_shard=2, recompute=True),
        Plan(batch, tp=2, sequence_parallel=True),
        Plan(quarter, 4, pp=2),
        Plan(half, dp_shard=2, recompute=True, selective=True),
        Plan(quarter, dp_shard=4),
        Plan(quarter, 4, pp=2, schedule="gpipe"),
        Plan(half, dp_replicate=2, zero1=True),
        Plan(quarter, dp_shard=2, dp_replicate=2),
        Plan(quarter, 2, dp_shard=2),
        Plan(half, dp_shard=2, tp=2),
        Plan(batch, tp=4),
        Plan(quarter, 4, pp=4),
        Plan(half, dp_shard=2, co_shard=2),
    ]


@dataclass(frozen=True, slots=True)
class Result:
    """Predicted and measured seconds of a step of one gang.

    ``others`` is the share of the cores that others took meanwhile; ``scaled`` are the seconds predicted for the rest
    of the cores.
    """

    name: str
    unseen: bool
    predicted: float
    scaled: float
    measured: float
    waiting: float
    others: float

    @property
    def error_pct(self) -> float:
        """Error in percent of the measured seconds; negative: predicted too low."""
        return 100 * (self.predicted / self.measured - 1)

    @property
    def scaled_error_pct(self) -> float:
        """Error in percent, if the ranks share only the cores that others left."""
        return 100 * (self.scaled / self.measured - 1)

    @property
    def steady(self) -> float:
        """Measured seconds less what others are predicted to add."""
        return self.measured * self.predicted / self.scaled

    def row(self) -> list[str]:
        seconds = [f"{1e3 * value:.1f}" for value in (self.predicted, self.measured)]
        errors = [f"{error:+.1f} %" for error in (self.error_pct, self.scaled_error_pct)]
        return [*seconds, *errors, f"{self.waiting:.0%}", f"{self.others:.0%}"]


def figures(results: Sequence[Result]) -> dict[str, float]:
    values: dict[str, float] = {"gang_pairs": len(results)}
    unseen = [result for result in results if result.unseen]
    for name, group in (("gang", results), ("gang_unseen", unseen)):
        if group:
            values |= _errors(f"{name}_step", [result.error_pct for result in group])
            values |= _errors(f"{name}_scaled", [result.scaled_error_pct for result in group])
    regrets, scaled = regrets_pct(results), regrets_pct(results, steady=True)
    return values | {
        "gang_unseen_pairs": len(unseen),
        "plan_regret_mean_pct": mean(regrets.values()),
        "plan_regret_max_pct": max(regrets.values()),
        "plan_regret_scaled_mean_pct": mean(scaled.values()),
        "gang_others_median": median(result.others for result in results),
    }


def _errors(name: str, signed_pct: Sequence[float]) -> dict[str, float]:
    errors = sorted(map(abs, signed_pct))
    last = min(len(errors) - 1, int(0.95 * len(errors)))
    return {f"{name}_median_pct": median(errors), f"{name}_p95_pct": errors[last]}


def regrets_pct(results: Sequence[Result], *, steady: bool = False) -> dict[str, float]:
    """For each model: how much longer the plan that is predicted to be the fastest takes than the one that is, in
    percent. With ``steady``, less what others are predicted to add."""
    by_model: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_model[result.name].append(result)

    def taken(result: Result) -> float:
        return result.steady if steady else result.measured

    return {
        name: 100 * (taken(min(runs, key=lambda run: run.predicted)) / min(map(taken, runs)) - 1)
        for name, runs in by_model.items()
    }


def notes(findings: Sequence[Finding]) -> list[str]:
    """The regret of each model."""
    regrets = regrets_pct([Result(**finding.values) for finding in findings])
    return [
        f"  {name}: the plan predicted to be fastest takes {regret:.1f} % longer than the fastest"
        for name, regret in regrets.items()
    ]


def measure(case: Gang, seconds: float) -> Result:
    """The result of one gang. The first call also calibrates."""
    kind = calibration(1 if case.quick else ROUNDS)
    work = traced(case)
    predicted, waiting = predict(case, work, kind)
    tries: list[Run] = []
    for _ in range(1 if case.quick else NUM_TRIES):
        tries.append(_ranks().run(case, seconds))
        if tries[-1].others <= QUIET:
            break
    quietest = min(tries, key=lambda run: run.others)
    scaled, _ = predict(case, work, _left(kind, quietest.others))
    return Result(case.name, case.unseen, predicted, scaled, median(quietest.steps), waiting, quietest.others)


def _left(kind: DeviceKind, others: float) -> DeviceKind:
    """The kind without the share of its cores that others take."""
    assert kind.cores is not None
    return replace(kind, cores=replace(kind.cores, value=kind.cores.value * (1 - others)))


@cache
def calibration(rounds: int) -> DeviceKind:
    """The calibration of this machine, in a separate process."""
    command = ["-m", "workloads.calibration.measure", "--rounds", str(rounds)]
    return DEVICE_KIND.validate_json(last_line(*command, seconds=CALIBRATION_SECONDS))


def traced(case: Gang) -> dict[Layout, StepWork]:
    """The work of each layout of the case's plan."""
    recipe = recipe_of(case.workload())
    return {layout: trace(recipe, layout, case.plan.micro_batch).work for layout in case.plan.layouts}


def predict(case: Gang, work: Mapping[Layout, StepWork], kind: DeviceKind) -> tuple[float, float]:
    """(predicted seconds of a step, share of it in which ranks wait)."""
    plan = case.plan
    if plan.pp > 1:
        return _pipeline(plan, [work[layout] for layout in plan.layouts], case, kind)
    step = work[plan.layout].step(plan.micro_batch, plan.num_micro_batches)
    step_cost = step_time(kind, plan.layout, step, plan.num_micro_batches)
    assert step_cost is not None
    return step_cost.seconds, step_cost.communication_share


def _pipeline(plan: Plan, stages: Sequence[StepWork], case: Gang, kind: DeviceKind) -> tuple[float, float]:
    """A pipeline is simulated with the traced work of its stages."""
    alone, links = replace(kind, cores=None), kind.links
    assert links is not None
    with torch.device("meta"):
        model = case.workload().build_model()
    assert isinstance(model, Chain)
    output_bytes = 4 * torch.Size(model.hidden_shape(plan.micro_batch)).numel()
    costs = []
    for layout, stage in zip(plan.layouts, stages, strict=True):
        passes = stage.fixed + stage.per_sample * plan.micro_batch
        inside = replace(
            passes, collectives=tuple(collective for collective in passes.collectives if collective.dimension != "pp")
        )
        time, update = step_time(alone, layout, inside, 1), step_time(alone, layout, stage.update, 1)
        assert time is not None and update is not None
        forward, half = time.seconds * FORWARD_SHARE, time.seconds * (1 - FORWARD_SHARE) / 2
        costs.append(StageCost(forward, half, half, 0, output_bytes, 0, update.seconds))
    schedule = SCHEDULES[plan.schedule](plan.pp, plan.num_micro_batches)
    simulation = simulate_step(schedule, costs, lambda start, end, size: message_seconds(size, start, end, links))
    return seconds_on(simulation, kind), simulation.bubble_share + simulation.communication_share


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds of each step of the slowest rank, and the share of the cores that other processes took."""

    steps: list[float]
    others: float


class Ranks:
    """Rank processes that run one case after another."""

    def __init__(self) -> None:
        self._ranks: list[subprocess.Popen[str]] = []

    def run(self, case: Gang, seconds: float) -> Run:
        """Run one case. Raises ``RuntimeError`` if a rank fails, or if it takes more than ``seconds``."""
        while len(self._ranks) < case.plan.world_size:
            self._ranks.append(_started(len(self._ranks)))
        ranks = self._ranks[: case.plan.world_size]
        with tempfile.TemporaryDirectory() as folder:
            for rank in ranks:
                assert rank.stdin is not None
                print(json.dumps([case.to_json(), f"{folder}/store"]), file=rank.stdin, flush=True)
            deadline = threading.Timer(seconds, self.end)
            deadline.start()
            try:
                lines = [rank.stdout.readline() for rank in ranks if rank.stdout is not None]
            finally:
                deadline.cancel()
        if not all(lines):
            self.end()
            _ranks.cache_clear()
            raise RuntimeError(f"a rank failed, or took more than {seconds:g} s: its error is above")
        said = [json.loads(line) for line in lines]
        busy, wall = said[0]["busy"], said[0]["wall"]
        ours = sum(answer["processor"] for answer in said)
        others = max(0.0, (busy - ours) / (wall * len(os.sched_getaffinity(0))))
        return Run([max(step) for step in zip(*(answer["steps"] for answer in said), strict=True)], others)

    def end(self) -> None:
        """End the processes."""
        for rank in self._ranks:
            rank.kill()


def _started(rank: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.planning.gangs_part", str(rank)]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@cache
def _ranks() -> Ranks:
    """The rank processes of this run, new ones after a failure."""
    started = Ranks()
    atexit.register(started.end)
    return started


def run_rank(case: Gang, rank: int, store: str) -> dict[str, Any]:
    """Seconds of each step on this rank, its processor seconds, and those of the whole machine, meanwhile."""
    plan, device, workload = case.plan, torch.device("cpu"), case.workload()

    def steps(mesh: DeviceMesh) -> dict[str, Any]:
        model = build_model(workload, plan, 0, device, mesh)
        optimizer = spread_optimizer(workload.optimizer(model), plan.layout, mesh)
        samples = rank_slices(torch.arange(plan.batch) % workload.num_train, plan, rank)

        def step() -> float:
            dist.barrier()
            began = time.monotonic()
            batches = (rank_part(model, workload.train_batch(part), plan, rank) for part in samples)
            train_step(workload, model, optimizer, batches, plan.num_micro_batches)
            return time.monotonic() - began

        taken = torch.tensor([step() for _ in range(NUM_WARM)][-1])
        dist.all_reduce(taken, op=dist.ReduceOp.MAX)
        num = min(MOST_STEPS, max(FEWEST_STEPS, int(MEASURED_SECONDS / float(taken))))
        began, spent, busy = time.monotonic(), time.process_time(), _busy_seconds()
        seconds = [step() for _ in range(num)]
        return {
            "steps": seconds,
            "wall": time.monotonic() - began,
            "processor": time.process_time() - spent,
            "busy": _busy_seconds() - busy,
        }

    with process_group(plan, rank, FileStore(store, plan.world_size), device) as mesh:
        assert mesh is not None
        warm_up(device, mesh)
        return steps(mesh)


def _busy_seconds() -> float:
    """Processor seconds that all processes of the machine have taken."""
    user, nice, system, _, _, irq, softirq, *_ = map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def main(rank: int) -> None:
    """Run the cases that are named on standard input, one on a line, as this rank of their gangs."""
    prepare_process()
    for line in sys.stdin:
        case, store = json.loads(line)
        print(json.dumps(run_rank(Gang.from_json(case), rank, store)), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
