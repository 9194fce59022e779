"""The command that compares the plans of a candidate by time, and draws the best pipeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from scamp.cli.terminal import AsJson, WorkingDir, out, params_of
from scamp_service.cli.terminal import Count, DataDir, Kind, Mib, Param, Seconds, What, progress, settings_of
from scamp_service.errors import InvalidInput
from scamp_service.patience import TRACE_SECONDS

app = typer.Typer()

ClusterFile = Annotated[
    Path | None,
    typer.Option("--cluster", help="devices of one or more kinds, instead of --device", metavar="FILE.yaml"),
]


@app.command()
def plan(
    source: What,
    param: Param = None,
    device: Kind = None,
    count: Count = None,
    mib: Mib = None,
    cluster_file: ClusterFile = None,
    seconds: Seconds = TRACE_SECONDS,
    working_dir: WorkingDir = None,
    data_dir: DataDir = None,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="write jobs of Slurm that run the study on --device or --cluster instead")
    ] = False,
    epoch_steps: Annotated[
        int | None, typer.Option(help="optimizer steps of an epoch, for --slurm of a study in epochs", min=1)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare the plans of a candidate by predicted time, and draw the best pipeline.

    Nothing is run. Besides the plans of `scamp estimate` there are pipelines of
    2, 3, 4 ... stages in several schedules, and the fastest plans of an exact
    search on 1, 2, 3, 4 ... devices: with any cut, and with recompute of as many
    blocks as needed. Ranks cannot train many of them yet. Of a study, its first
    candidate is planned. See docs/plan.md.

    step     time of an optimizer step; GFLOP if no speed is known
    bubble   share of the step in which ranks wait for others to compute
    comm     share of the step in which ranks wait for communication
    MiB      reservation of the rank that needs most; ~ if it was not traced
    today    whether ranks can train the plan, it is only planned, or it does not fit
    """
    from scamp_service.cli.first_answer import answer_first, say
    from scamp_service.cli.plan_json import comparison_json
    from scamp_service.cli.tables.estimate import headline
    from scamp_service.cli.tables.plan import as_table, footnotes, picture, reason, shortage_lines
    from scamp_service.sizing.candidates import candidates_of, is_study
    from scamp_service.sizing.cluster_file import cluster_named, read_cluster
    from scamp_service.sizing.comparison import compare
    from scamp_service.sizing.estimate import Estimator, target
    from scamp_service.sizing.tracing.options import Tracing
    from scamp_service.sizing.tracing.under_way import UnderWay

    settings = settings_of(data_dir=data_dir)
    if cluster_file is not None and any(option is not None for option in (device, count, mib)):
        raise InvalidInput("--cluster names all devices: leave out --device, --count and --mib")
    named_cluster = read_cluster(cluster_file, settings) if cluster_file is not None else None
    if slurm:
        from scamp_service.cli.slurm import print_slurm_jobs

        if not is_study(source) or as_json or params_of(param) or mib or not (named_cluster or device):
            raise InvalidInput("--slurm needs a study's file, and --device (with --count) or --cluster")
        named_cluster = named_cluster or cluster_named(f"{count or 1}x{device}", settings)
        print_slurm_jobs(Path(source), named_cluster, settings, epoch_steps, working_dir)
        return
    sized_candidates = candidates_of(source, params_of(param), 1, working_dir)
    cluster, kind = (
        (named_cluster.of_kind(named_cluster.fastest), named_cluster.fastest)
        if named_cluster is not None
        else target(settings, device, count, mib, any_size=not is_study(source))
    )
    under_way, params = UnderWay(), sized_candidates.candidates[0]
    tracing = Tracing(settings.data_dir / "profiles", seconds, under_way)
    with Estimator(
        sized_candidates.workload,
        sized_candidates.code,
        tracing,
        kind,
        hear=say,
    ) as estimator:
        answer_first(estimator, params, under_way, settings, measures=named_cluster is None and device is None)
        with progress(under_way):
            comparison = compare(estimator, params, cluster, named_cluster)
    if as_json:
        print(json.dumps(comparison_json(comparison)))
        return
    out.print(headline(comparison.estimate), style="bold", soft_wrap=True)
    out.print(as_table(comparison), "")
    for lines in (shortage_lines(comparison), reason(comparison), picture(comparison)):
        if text := list(lines):
            out.print(*text, "", sep="\n", soft_wrap=True, markup=False)
    for line in footnotes(comparison):
        out.print(line, style="dim", soft_wrap=True, markup=False)
