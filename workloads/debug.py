"""Trains one candidate without Ray, a database or limits, to look for mistakes in a workload.

    python -m workloads.debug FILE.py:Class --param lr=0.1 --steps 20
    torchrun --nproc-per-node 2 -m workloads.debug FILE.py:Class --plan dp_shard=2,micro_batch=16

It runs the code that ranks run, so it prints the losses and metrics that a trial with the same parameters, plan and
seed would report, and a warning where studies refuse the candidate or the plan. Debuggers and ``print`` work as in
any script. Checkpoints go to a folder that is deleted at the end.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import yaml
from torch.distributed import Store

from estimators.model import Candidate, Plan, mib_in_words
from estimators.named_plan import plan_of
from scamp.yaml_numbers import with_numbers
from workloads.batch import BatchRequest, to_try
from workloads.loading import load_workload
from workloads.refusals import WorkloadError
from workloads.sandbox.fork import refusal_within
from workloads.training.attempt.job import TrainingJob
from workloads.training.checkpoints.name import CheckpointName
from workloads.training.failing import end_rank
from workloads.training.rendezvous import TIMEOUT
from workloads.training.runtime import train

_CHECK_SECONDS = 30
"""Longest wait for a trace, by which studies find what they refuse."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Train as the command line says; the ranks of a gang find each other by torchrun's environment."""
    options = _parser().parse_args(arguments)
    file, _, name = options.workload.rpartition(":")
    code_dir, workload = (
        (Path(file).resolve().parent, f"{Path(file).name}:{name}") if file else (None, options.workload)
    )
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    store = next(dist.rendezvous("env://", timeout=TIMEOUT))[0] if world_size > 1 else None
    try:
        _train(options, workload, code_dir, rank, world_size, store)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit that the user's code raises
        end_rank(error, code_dir, store, shows_all=options.traceback)


def _train(
    options: argparse.Namespace, workload: str, code_dir: Path | None, rank: int, world_size: int, store: Store | None
) -> None:
    params = dict(to_try(dict(options.param)))
    batch = BatchRequest.of(params).samples or load_workload(workload, code_dir)(params).default_batch
    if options.plan is None and batch % world_size:
        raise WorkloadError(f"{world_size} ranks do not divide the batch of {batch}: choose another --param batch=…")
    plan = options.plan or Plan(batch // world_size, dp_shard=world_size)
    if plan.world_size != world_size:
        raise WorkloadError(f"the plan ({plan}) needs torchrun --nproc-per-node {plan.world_size}")
    if plan.batch != batch:
        raise WorkloadError(f"the plan ({plan}) trains {plan.batch} samples per step, and the batch is {batch}")
    refusal = ""
    if rank == 0:
        print(f"{workload} {params}: {plan}", flush=True)
        refusal = refusal_within(_CHECK_SECONDS, _request(workload, code_dir, params), plan.layout)
    with tempfile.TemporaryDirectory(prefix="scamp-debug-") as folder:
        shared = Path(_shared("folder", folder, rank, store))
        is_refused = _shared("refusal", refusal, rank, store) != ""
        job = TrainingJob(
            candidate=Candidate(workload, None, params),
            code_dir=code_dir,
            plan=plan,
            seed=options.seed,
            steps=options.steps,
            report_every=options.report_every or max(1, options.steps // 10),
            budget_bytes=None,
            checkpoint_root=shared,
            trial_id=1,
            resume=None,
            metrics=(),
            guard=not is_refused,  # the warning says it already
        )
        train(job, rank, world_size, store, _Printed(refusal))
        _end_together(rank, world_size, store)


def _request(workload: str, code_dir: Path | None, params: Mapping[str, Any]) -> dict[str, Any]:
    """The request to trace the candidate as studies do."""
    return {
        "workload": workload,
        "params": dict(params),
        "code_dir": None if code_dir is None else str(code_dir),
        "code_zip": None,
        "on_cuda": torch.cuda.is_available(),
        "equal_blocks": None,
    }


def _shared(name: str, text: str, rank: int, store: Store | None) -> str:
    """Rank 0's text."""
    if store is None:
        return text
    if rank == 0:
        store.set(f"scamp/{name}", text)
    return str(store.get(f"scamp/{name}").decode())


def _end_together(rank: int, world_size: int, store: Store | None) -> None:
    """Have rank 0 delete the folder only once all ranks have ended."""
    if store is not None:
        store.set(f"scamp/ended/{rank}", "")
        store.wait([f"scamp/ended/{other}" for other in range(world_size)])


class _Printed:
    """Prints what rank 0 reports, and after its first step why studies refuse what it trains.

    Where the first step fails, its error says the same.
    """

    def __init__(self, refusal: str) -> None:
        self._refusal = refusal
        self._checkpoints: list[CheckpointName] = []

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._warn()
        print(f"step {step}: " + ", ".join(f"{name} {value:.6g}" for name, value in values.items()), flush=True)

    def measured(self, peak_bytes: int) -> None:
        print(f"peak of a step: {mib_in_words(peak_bytes)} of tensors", flush=True)

    def timed(self, step_seconds: float, num_steps: int, check_share: float) -> None:
        checks = f"; checks took {check_share:.1%} of the time" if check_share else ""
        print(f"median of {num_steps} steps: {step_seconds * 1000:.1f} ms{checks}", flush=True)

    def communicated(self, share: float) -> None:
        print(f"ranks wait for each other for {share:.0%} of a step", flush=True)

    def learned_noise(self, noise_scale: float) -> None:
        print(f"noise scale of the gradient: {noise_scale:.3g} samples", flush=True)

    def checkpoint(self, step: int) -> None:
        self._checkpoints.append(CheckpointName(1, step))

    def progressed(self, step: int) -> None:
        if step:
            self._warn()

    def _warn(self) -> None:
        if self._refusal:
            print(f"warning: {self._refusal}", file=sys.stderr, flush=True)
            self._refusal = ""

    def needed_checkpoints(self) -> Sequence[CheckpointName]:
        return self._checkpoints[-1:]

    def should_stop(self) -> bool:
        return False


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m workloads.debug", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workload", metavar="FILE.py:Class", help="a class in your file, or a built-in workload")
    parser.add_argument("--param", type=_param, action="append", default=[], metavar="NAME=VALUE", help="a parameter")
    parser.add_argument(
        "--plan", type=plan_of, help="such as dp_shard=2,micro_batch=16; FSDP over all ranks if left out"
    )
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps (20)")
    parser.add_argument("--report-every", type=int, help="steps from one evaluation to the next (a tenth of all)")
    parser.add_argument(
        "--seed", type=int, default=0, help="of weights and order; a trial has that of its study plus its number (0)"
    )
    parser.add_argument("--traceback", action="store_true", help="show all of the traceback of an error")
    return parser


def _param(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, with_numbers(yaml.safe_load(value))


if __name__ == "__main__":
    main()
