"""Trains one rank of a candidate under a plan: every plan gives the same loss curve, step for step, but for what
``docs/workloads.md`` names.

The caller provides a rendezvous, a reporter and a warm process. The process group, the memory limit and the model are
gone when ``train`` returns or raises. Other modules decide which plan runs, where and when.
"""

from __future__ import annotations

import gc
import re
import traceback
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import Store

from scamp.user_code.own_imports import OUR_FOLDERS
from scamp.workload.seeds import DATA_SEED, seed_everything
from workloads.imports import import_early
from workloads.loading import load_workload
from workloads.parallel.forward_state.state import forward_state
from workloads.parallel.forward_state.watch import FREED, is_freed
from workloads.protocol import Workload
from workloads.refusals import WorkloadError
from workloads.training.attempt.job import TrainingJob
from workloads.training.attempt.loop import Loop
from workloads.training.attempt.rank import TrainingRank
from workloads.training.attempt.reporter import Reporter
from workloads.training.building import build_model
from workloads.training.checkpoints import checkpoint, outbox
from workloads.training.checkpoints.folders import expect_shared_folder
from workloads.training.checkpoints.intact import newest_intact
from workloads.training.checkpoints.name import CheckpointName, Donor, trial_folder
from workloads.training.data.data_checks import expect_data, expect_order
from workloads.training.data.feed import feeding
from workloads.training.data.order import SampleOrder
from workloads.training.faults import HostFault, StorageFault
from workloads.training.gang import process_group
from workloads.training.memory import budget
from workloads.training.packs.pack import Member, Pack
from workloads.training.updates.update import expect_reduction, make_optimizer, scale_steps, scaled_from
from workloads.training.warm_up import warm_up
from workloads.trial import ARTIFACTS, Slab, TrialContext


class PeerLost(Exception):
    """A collective failed because another rank of the gang is gone; that rank's error has the cause."""


def lost_its_peers(error: BaseException) -> bool:
    """Whether the error only says that another rank is gone; the cause is then in that rank's error."""
    return isinstance(error, (PeerLost, dist.DistError))


def train(
    job: TrainingJob,
    rank: int,
    world_size: int,
    rendezvous: Store | None,
    reporter: Reporter,
    pack: Pack | None = None,
) -> Literal["done", "stopped"]:
    """Train until ``job.last_step`` ("done"), or until a rank's reporter says to stop ("stopped").

    With a ``pack`` this is one of several trainings in the process, each in a thread of its own.

    Raises ``budget.OutOfMemory``, ``NonFiniteLoss``, ``DependsOnDivision``, ``ResumesDifferently``, ``PeerLost``,
    ``WorkloadError``, ``StorageFault``, or any error of the workload.
    """
    if world_size != job.plan.world_size:
        raise ValueError(f"the plan ({job.plan}) needs {job.plan.world_size} ranks, got {world_size}")
    torch.set_num_threads(1)
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        with pack.member() if pack is not None else nullcontext() as member:
            return _train(job, rank, rendezvous, reporter, device, member)
    except budget.OutOfMemory as error:
        if pack is not None and pack.num_others and error.requested_bytes:  # nobody knows who needed too much
            raise HostFault(
                f"the trials that share its process ran out of memory, so it trains alone: {error}"
            ) from None
        overrun = error.with_traceback(None)  # the traceback's frames hold memory that the next job needs
        overrun.__cause__ = overrun.__context__ = None
    except RuntimeError as error:
        if is_freed(error) and job.plan.fsdp_mesh:
            raise WorkloadError(FREED) from error
        if world_size > 1 and re.search(_PEER_GONE, str(error)) and not _is_raised_by_others(error):
            raise PeerLost(f"another rank of the gang is gone; look for the cause in its error ({error})") from error
        raise
    finally:
        gc.collect()
        budget.give_back(device)
    raise overrun


_PEER_GONE = r"onnection (closed|reset|refused)|[Bb]roken pipe|Timed out waiting|Application timeout|Socket closed"


def _is_raised_by_others(error: BaseException) -> bool:
    """Whether a ``raise`` of users' code or of another library than torch made the error, and no collective."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    own_folders = (Path(torch.__file__).parent, *OUR_FOLDERS)
    return "raise" in (frame.line or "") and not any(
        Path(frame.filename).is_relative_to(folder) for folder in own_folders
    )


def _train(
    job: TrainingJob,
    rank: int,
    rendezvous: Store | None,
    reporter: Reporter,
    device: torch.device,
    member: Member | None,
) -> Literal["done", "stopped"]:
    """The training of this rank, from top to bottom; its frame holds all memory of the candidate."""
    workload = _loaded(job, rank)
    base_batch = scaled_from(workload)  # with AdaScale, whose optimizer steps may count as several; else None
    epoch_length = SampleOrder(workload, job.seed).epoch_length
    job = job.in_optimizer_steps(epoch_length, base_batch or job.plan.batch)
    job = _from_an_intact_checkpoint(job, rank, reporter)
    begun, first = _start_of(job) if base_batch else (job.begin, 0)
    steps, is_evaluated = range(begun, begun + job.most_steps), None if base_batch else job.is_evaluated
    with ExitStack() as stack:
        # Workers are forked first, so that they hold none of the gang's connections and nothing of the model.
        feed = stack.enter_context(feeding(workload, job.plan, rank, job.seed, steps, is_evaluated, first))
        mesh = stack.enter_context(process_group(job.plan, rank, rendezvous, device))
        warm_up(device, mesh)
        feed.open()
        if mesh is not None and not job.is_mirrored:
            expect_shared_folder(trial_folder(job.checkpoint_root, job.trial_id))
        if job.code_dir is not None:
            import_early(type(workload), job.code_dir)
        baseline = budget.baseline(device)
        with member.pack.limit.lifted() if member is not None else nullcontext():
            fill = _first_weights(job, workload, reporter)
            fill = member.sharing(fill) if member is not None else fill
            model = build_model(workload, job.plan, job.seed, device, mesh, fill)
            if member is not None:
                member.attach(model)
        baseline = budget.with_libraries(device, baseline)
        forward_state(model).weight = job.plan.weight_of(rank)
        if member is not None and job.budget_bytes is not None:
            stack.enter_context(member.pack.limit.part(device, baseline, job.budget_bytes, job.shared_bytes))
        own_limit = job.budget_bytes if member is None else None
        held = stack.enter_context(budget.enforce(device, baseline, own_limit))
        optimizer = make_optimizer(workload, model, job.plan.layout, mesh, job.steps)
        scale_steps(model, job.plan.batch)
        training_rank = TrainingRank(job, workload, device, mesh, rank, reporter, held, model, optimizer, feed, member)
        return Loop(training_rank, begun).train()


def _loaded(job: TrainingJob, rank: int) -> Workload:
    """The candidate's workload, whose data and options suit the plan."""
    seed_everything(DATA_SEED)  # for what the user's modules and the constructor draw, which go on from each other
    workload = load_workload(job.candidate.workload, job.code_dir)(job.candidate.params)
    folder = trial_folder(job.checkpoint_root, job.trial_id) / ARTIFACTS
    slab = Slab(job.plan.coordinate(rank, "spatial"), job.plan.spatial)
    workload.trial = TrialContext(job.study_id, job.number, job.attempt, rank, job.plan.world_size, folder, slab=slab)
    expect_data(workload)
    expect_order(workload, job.plan.batch)
    expect_reduction(workload, job.plan.layout)
    return workload


def _from_an_intact_checkpoint(job: TrainingJob, rank: int, reporter: Reporter) -> TrainingJob:
    """The job, resuming from an older checkpoint of its trial if the wanted one is damaged, or not to be had."""
    if job.resume is None:
        return job
    if job.resume.trial_id != job.trial_id:
        _fetch(job, job.resume, reporter)
        return job
    unfetched = _unfetched(job, job.resume, reporter, or_older=True)
    intact, why = newest_intact(job.checkpoint_root, job.resume, unfetched)
    if why and rank == 0:
        print(f"{why}; training continues from step {intact.step}", flush=True)
    return replace(job, resume=intact)


def _unfetched(job: TrainingJob, name: CheckpointName, reporter: Reporter, *, or_older: bool = False) -> str:
    """Have a mirrored checkpoint on this host; returns why that cannot be. Raises ``StorageFault``."""
    if not job.is_mirrored:
        return ""
    try:
        return outbox.fetch(job.checkpoint_root, name, or_older=or_older, lives=lambda: reporter.progressed(0))
    except outbox.NotFetched as error:
        raise StorageFault(str(error)) from None


def _fetch(job: TrainingJob, name: CheckpointName, reporter: Reporter) -> None:
    """Have a checkpoint of another trial on this host. Raises ``StorageFault``."""
    if why := _unfetched(job, name, reporter):
        raise StorageFault(f"a checkpoint of another trial, with which this one begins, cannot be had: {why}")


def _start_of(job: TrainingJob) -> tuple[int, int]:
    """Optimizer steps that were made before, and the position in the order of samples at which step 0 would begin."""
    if job.resume is None or (begun := checkpoint.progress_at(job.checkpoint_root, job.resume)) is None:
        return job.begin, 0
    num_steps, num_samples = begun
    return num_steps, num_samples - num_steps * job.plan.batch


def _first_weights(job: TrainingJob, workload: Workload, reporter: Reporter) -> Callable[[nn.Module], None] | None:
    """The function that fills a new model with other weights than those that it draws; None: there is none."""
    if job.resume is not None:
        return None
    return workload.load_weights if job.donor is None else _inheriting(job, workload, job.donor, reporter)


def _inheriting(job: TrainingJob, workload: Workload, donor: Donor, reporter: Reporter) -> Callable[[nn.Module], None]:
    """Fills the candidate's whole model with weights of the donor's, as the workload says."""
    if type(workload).inherit is Workload.inherit:
        raise WorkloadError(
            f"the study lets candidates inherit weights, but {type(workload).__name__} has no method inherit: add one, "
            "or remove the option from the study"
        )

    def fill(model: nn.Module) -> None:
        _fetch(job, donor.checkpoint, reporter)
        parent = load_workload(job.candidate.workload, job.code_dir)(donor.params).build_model()
        checkpoint.load_whole(job.checkpoint_root, donor.checkpoint, parent)
        workload.inherit(model, parent, donor.params)

    return fill
