"""The command that compares the plans of a candidate by time, and draws the best pipeline."""

from __future__ import annotations

import json

import typer

from scamp_service.cli.terminal import (
    AsJson,
    Count,
    DataDir,
    Kind,
    Mib,
    Param,
    Seconds,
    What,
    WorkingDir,
    out,
    params_of,
    progress,
    settings_of,
)
from scamp_service.sizing.candidates import candidates_of, is_study
from scamp_service.sizing.under_way import TRACE_SECONDS, UnderWay

app = typer.Typer()


@app.command()
def plan(
    what: What,
    param: Param = None,
    device: Kind = None,
    count: Count = None,
    mib: Mib = None,
    seconds: Seconds = TRACE_SECONDS,
    working_dir: WorkingDir = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Compare the plans of a candidate by predicted time, and draw the best pipeline.

    Nothing is run. Beside the plans of `scamp estimate` there are pipelines of
    2, 4, 8 ... stages in several schedules, many of which ranks cannot train
    yet. Of a study, its first candidate is planned. See docs/plan.md.

    step     time of an optimizer step; GFLOP if no speed is known
    bubble   share of the step in which ranks wait for others to compute
    comm     share of the step in which ranks wait for communication
    MiB      reservation of the rank that needs most; ~ if it was not traced
    today    whether ranks can train the plan, or it is only planned
    """
    from scamp_service.cli.estimate_table import headline
    from scamp_service.cli.plan_table import as_table, footnotes, picture
    from scamp_service.sizing.alternatives import compare
    from scamp_service.sizing.estimate import Estimator, target

    settings = settings_of(data_dir=data_dir)
    cluster, kind = target(settings, device, count, mib, any_size=not is_study(what))
    wanted = candidates_of(what, params_of(param), 1, working_dir)
    under_way = UnderWay()
    with Estimator(
        wanted.workload, wanted.code, settings.data_dir / "profiles", kind, seconds=seconds, under_way=under_way
    ) as estimator:
        with progress(under_way):
            found = compare(estimator, wanted.candidates[0], cluster)
    if as_json:
        print(json.dumps(found.to_json()))
        return
    out.print(headline(found.estimate), style="bold", soft_wrap=True)
    out.print(as_table(found), "")
    for line in picture(found):
        out.print(line, soft_wrap=True, markup=False)
    out.print()
    for line in footnotes(found):
        out.print(line, style="dim", soft_wrap=True, markup=False)
