"""The commands that predict and measure costs without a service or Ray: estimate, screen, calibrate and devices."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scamp.cli.terminal import AsJson, StudyFile, WorkingDir, err, out, params_of
from scamp_service.cli.terminal import Count, DataDir, Kind, Mib, Param, Rounds, Seconds, What, progress, settings_of
from scamp_service.errors import InvalidInput
from scamp_service.patience import TRACE_SECONDS

if TYPE_CHECKING:
    from estimators.devices.kind import DeviceKind
    from estimators.model import Plan, Prediction
    from scamp_service.sizing.estimated import Estimate

app = typer.Typer()


@app.command()
def estimate(
    source: What,
    param: Param = None,
    candidates: Annotated[
        int,
        typer.Option(help="how many of the study's candidates to estimate, starting with the first", min=1, max=1000),
    ] = 1,
    device: Kind = None,
    count: Count = None,
    mib: Mib = None,
    expandable: Annotated[
        bool, typer.Option("--expandable-segments", help="with PyTorch's expandable_segments; needs --device")
    ] = False,
    plan: Annotated[str | None, typer.Option(help="estimate only this plan, such as micro_batch=8,tp=2")] = None,
    units: Annotated[
        bool, typer.Option("--units", help="also show the cost of each block, and of the layers around the blocks")
    ] = False,
    seconds: Seconds = TRACE_SECONDS,
    working_dir: WorkingDir = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Predict the memory and step time of each plan of a candidate, without running it.

    No service, Ray or GPU is needed. Without --mib and --device, only a study
    has a size of devices; otherwise every peak is shown, and how large devices
    must be. A function returns (model, inputs[, loss[, optimizer]]) and needs
    no data; see docs/functions.md. Memory columns show one rank at its peak, by
    category. Abbreviations:

    rc       activations are recomputed in the backward pass
    gath     sharded parameters while they are gathered to full size
    reserve  peak plus a margin for memory that a trace does not see
    max      largest micro-batch at which the plan still fits a device
    step     time of an optimizer step; on virtual devices, which share this
             machine's cores, only once it has been measured: here the first
             time in a terminal, by a service, or by `scamp calibrate`

    With --device also:

    out      memory outside of PyTorch's allocator
    least    memory of the smallest device on which the plan fits
    comm     share of the step in which ranks wait for each other
    """
    from scamp_service.cli.first_answer import answer_first, say
    from scamp_service.cli.named_plan import plan_of
    from scamp_service.cli.tables.estimate import footnotes
    from scamp_service.sizing.candidates import candidates_of, is_study
    from scamp_service.sizing.estimate import Estimator, target
    from scamp_service.sizing.tracing.options import Tracing
    from scamp_service.sizing.tracing.under_way import UnderWay

    settings = settings_of(data_dir=data_dir)
    if expandable and device is None:
        raise InvalidInput("--expandable-segments applies to the allocator of GPUs: name a GPU with --device")
    fixed_plan = plan_of(plan) if plan is not None else None
    sized_candidates = candidates_of(source, params_of(param), candidates, working_dir)
    cluster, kind = target(settings, device, count, mib, any_size=not is_study(source))
    under_way = UnderWay()
    tracing = Tracing(settings.data_dir / "profiles", seconds, under_way)
    options = sized_candidates.workload, sized_candidates.code, tracing, kind, expandable
    if fixed_plan is not None:
        with Estimator(*options) as estimator, progress(under_way):
            stages = [estimator.predict(params, fixed_plan) for params in sized_candidates.candidates]
        _show_plan(sized_candidates.candidates, fixed_plan, stages, kind if device else None, as_json)
        return
    estimates = []
    with Estimator(*options, hear=say) as estimator:
        for params in sized_candidates.candidates:
            answer_first(estimator, params, under_way, settings, measures=device is None)
            with progress(under_way):
                estimates.append(estimator.estimate(params, cluster))
            if not as_json:
                _show_estimate(estimates[-1], units)
    if as_json:
        print(json.dumps([answer.to_json() for answer in estimates]))
        return
    for line in footnotes(estimates[-1]):
        out.print(line, style="dim", soft_wrap=True, markup=False)


@app.command()
def screen(
    study_file: StudyFile,
    candidates: Annotated[
        int, typer.Option(help="number of candidates to draw from the study's space", min=1, max=10_000)
    ] = 1000,
    device: Kind = None,
    count: Count = None,
    mib: Annotated[
        int | None,
        typer.Option(
            help="MiB that may be used of each device; default: all that a GPU of --device offers, otherwise "
            "SCAMP_DEVICE_MIB (96)",
            min=1,
        ),
    ] = None,
    param: Param = None,
    seconds: Seconds = TRACE_SECONDS,
    working_dir: WorkingDir = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Predict how much of a study's search space fits, and on how many ranks.

    A few candidates are traced. Formulas fitted to their traces predict the
    peaks of most others to the byte; the rest are traced one by one. Answers
    are kept for the next time. Pipelines, ZeRO-1 and layouts that few
    candidates need are left out: a footnote counts the candidates for which
    one of these might be cheaper, or the only plan that fits.

    Each row counts the candidates for which a study would choose that number
    of ranks, and how many of them need recompute or gradient accumulation.
    The last two columns are medians. --json has every candidate with the
    plans that were examined for it.
    """
    from scamp_service.cli.tables.screen import as_table, footnotes
    from scamp_service.sizing.candidates import candidates_of, is_study
    from scamp_service.sizing.estimate import target
    from scamp_service.sizing.screen.screening import screen as screened
    from scamp_service.sizing.tracing.options import Tracing
    from scamp_service.sizing.tracing.under_way import UnderWay

    settings = settings_of(data_dir=data_dir)
    cluster, kind = target(settings, device, count, mib)
    if not is_study(str(study_file)):
        raise InvalidInput(
            f"{study_file} has no space to screen: name a study in YAML, or run `scamp estimate {study_file}`"
        )
    screened_candidates = candidates_of(str(study_file), params_of(param), candidates, working_dir, at_random=True)
    under_way = UnderWay()
    with progress(under_way):
        screening = screened(
            screened_candidates.workload,
            screened_candidates.code,
            screened_candidates.candidates,
            cluster,
            Tracing(settings.data_dir / "profiles", seconds, under_way),
            kind,
            err.print,
        )
    if as_json:
        print(json.dumps([candidate.to_json() for candidate in screening.candidates]))
        return
    first_device = cluster.devices[0]
    offered = f"{len(cluster.devices)} × {first_device.kind}, {first_device.capacity_mib} MiB"
    out.print(f"{len(screening.candidates)} candidates on {offered}", style="bold")
    out.print(as_table(screening))
    for line in footnotes(screening, kind):
        out.print(line, style="dim", soft_wrap=True, markup=False)


def _show_estimate(result: Estimate, units: bool) -> None:
    """Print the plans of a candidate, and if ``units`` the cost of each block before them."""
    from scamp_service.cli.tables.estimate import as_table, headline, units_table

    out.print(headline(result), style="bold", soft_wrap=True)
    if units:
        out.print(units_table(result), "")
    out.print(as_table(result))
    out.print(f"→ {result.reason}", soft_wrap=True, markup=False)
    if (largest := result.largest_batch) is not None:
        plan, option = largest
        least = "at least " if result.may_be_larger(option) else ""
        out.print(f"largest batch in one pass: {least}{plan.batch} samples ({plan})", soft_wrap=True, markup=False)
    if (pack := result.pack) is not None:
        out.print(str(pack), soft_wrap=True, markup=False)
    out.print()
    for words in result.profile.traits.words:
        out.print(words, soft_wrap=True, markup=False)
    if result.refused:
        out.print(f"no FSDP plans: {result.refused}\n", soft_wrap=True, markup=False)


def _show_plan(
    candidates: Sequence[Mapping[str, Any]],
    plan: Plan,
    stages: Sequence[Sequence[Prediction]],
    kind: DeviceKind | None,
    as_json: bool,
) -> None:
    from scamp_service.cli.named_plan import caveat, stages_json, stages_table

    if as_json:
        both = zip(candidates, stages, strict=True)
        print(json.dumps([stages_json(dict(params), plan, stage_list, kind) for params, stage_list in both]))
        return
    for rank_stages in stages:
        out.print(f"{plan}: one rank of each stage", style="bold", soft_wrap=True)
        out.print(stages_table(rank_stages))
    if words := caveat(kind):
        out.print(words, style="dim", soft_wrap=True, markup=False)


@app.command()
def calibrate(rounds: Rounds = 3, data_dir: DataDir = None) -> None:
    """Measure the speed of this machine's CPU and GPUs, so that step times are predicted more exactly.

    `scamp estimate`, `scamp plan` and the dashboard show step times, and
    studies choose plans by them. Without this command a CPU is measured once
    by itself, in some seconds; its result replaces that one.

    It takes about a minute for the CPU, on which a few ranks also measure how
    fast they communicate, and a minute for each model of GPU. Leave one GPU of
    each model idle meanwhile. The measured speed and memory outside of
    PyTorch's allocator then replace the literature's figures for `scamp
    estimate --device`.
    """
    from scamp_service.cluster.devices.gpus import inventory
    from scamp_service.sizing.calibration import calibrate_cpu, calibrate_gpu, one_of_each

    settings = settings_of(data_dir=data_dir)
    with err.status("measuring the CPU …"):
        _print_kind(calibrate_cpu(settings.data_dir, rounds))
    for gpu in one_of_each(inventory()):
        if gpu.other_processes_mib:
            err.print(f"other processes hold {gpu.other_processes_mib} MiB of {gpu.name}, so measurements may be wrong")
        with err.status(f"measuring {gpu.name} …"):
            _print_kind(calibrate_gpu(settings.data_dir, gpu))


def _print_kind(kind: DeviceKind) -> None:
    from estimators.model import MIB

    out.print(f"{kind.name}: {kind.provenance}", highlight=False, soft_wrap=True)
    if per_flop := kind.rates["matmul"].per_flop:  # a fit may give zero
        out.print(f"{1e-9 / per_flop:.3g} GFLOP/s for matrix multiplication", highlight=False)
    if kind.links is not None and kind.cores is not None:
        speed = kind.links.inside.bytes_per_second.value
        out.print(f"{speed / 1e9:.3g} GB/s between ranks, which share {kind.cores.value:.3g} cores", highlight=False)
    if kind.memory is not None:
        outside = kind.memory.outside_bytes(1) / MIB
        out.print(f"{outside:.0f} MiB of a process's memory is outside PyTorch's tensors", highlight=False)


@app.command()
def devices(as_json: AsJson = False) -> None:
    """List this machine's GPUs: memory, links, and the name for `scamp estimate --device`.

    others   MiB held by processes that are not ScaMP's
    free     MiB available to ScaMP, including what its ranks already hold
    """
    from scamp_service.cli.tables.gpus import as_table, without_gpus
    from scamp_service.cluster.devices.gpus import inventory

    settings = settings_of()
    rehearsal, gpus = settings.rehearsal_gpus, inventory(settings.rehearsal_gpus)
    if as_json:
        count = settings.virtual_devices * settings.virtual_nodes
        virtual = None if gpus else {"count": count, "mib": settings.device_mib}
        listed = [gpu.to_json() for gpu in gpus]
        print(json.dumps({"gpus": listed, "virtual_devices": virtual, "rehearsal": rehearsal}))
        return
    if rehearsal:
        out.print(f"a rehearsal: these are the GPUs of {rehearsal}, not of this machine", markup=False, soft_wrap=True)
    if gpus:
        out.print(as_table(gpus))
    else:
        out.print(without_gpus(settings), soft_wrap=True)
