"""The command that simulates studies on a cluster that one need not have."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scamp.cli.terminal import AsJson, WorkingDir, err, out
from scamp_service.cli.terminal import DataDir, settings_of
from scamp_service.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scamp_service.simulation.replay import ReplayOptions, Submitted
    from scamp_service.sizing.cluster_file import NamedCluster

app = typer.Typer()


@app.command()
def simulate(
    studies: Annotated[
        list[Path], typer.Argument(help="studies in YAML, all submitted at once", metavar="STUDY.yaml...")
    ],
    *,
    cluster: Annotated[
        str,
        typer.Option(
            help="NODESxDEVICESxKIND, such as 8x4xV100-16, several joined with commas, or a file as for `scamp plan`",
            metavar="CLUSTER",
        ),
    ],
    gantt: Annotated[
        Path | None, typer.Option(help="draw what ran where and when, as SVG or HTML", metavar="FILE")
    ] = None,
    seed: Annotated[int, typer.Option(help="seed of the drawn objective values", min=0)] = 0,
    early_stopping: Annotated[
        bool,
        typer.Option(
            "--early-stopping/--no-early-stopping",
            help="let stopping rules judge drawn values, or train every trial to its end",
        ),
    ] = True,
    policy: Annotated[
        str,
        typer.Option(
            help="packs trials onto devices: pack, elastic, min-degree or static-N; several joined with commas are "
            "compared; default: that of the settings",
            metavar="POLICY",
        ),
    ] = "",
    epoch_steps: Annotated[int | None, typer.Option(help="optimizer steps of an epoch", min=1)] = None,
    start_seconds: Annotated[float, typer.Option(help="seconds from launch until a gang trains", min=0.0)] = 1.0,
    trace_seconds: Annotated[float, typer.Option(help="seconds to trace a candidate, two at once", min=0.0)] = 0.0,
    rank_seconds: Annotated[
        float,
        typer.Option(help="seconds of a core to start a rank on a virtual device that has no idle one", min=0.0),
    ] = 0.0,
    sharing_gain: Annotated[
        float,
        typer.Option(help="gangs that share a GPU are together so many times as fast as one alone", min=1.0),
    ] = 1.0,
    noise_scale: Annotated[
        float | None,
        typer.Option(help="noise scale of gradients, in samples; batches that may grow (AdaScale) follow it", min=0.0),
    ] = None,
    working_dir: WorkingDir = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Replay studies on a cluster that you need not have, in virtual time.

    The controller, its decisions, samplers and stopping rules are those of a
    service. Candidates are traced and planned as in a study, and train for as
    many seconds as is predicted. See docs/simulate.md.
    """
    from scamp_service.simulation.replay import ReplayOptions
    from scamp_service.sizing.cluster_file import cluster_named, read_cluster

    settings = settings_of(data_dir=data_dir)
    if gantt is not None and gantt.suffix not in (".svg", ".html"):
        raise InvalidInput(f"--gantt draws SVG or HTML: {gantt} must end with .svg or .html")
    is_file = cluster.endswith((".yaml", ".yml"))
    named_cluster = read_cluster(Path(cluster), settings) if is_file else cluster_named(cluster, settings)
    names = _policies(policy or settings.policy)
    submitted = _submitted(studies, working_dir)
    options = ReplayOptions(
        cache_dir=settings.data_dir / "profiles",
        seed=seed,
        early_stopping=early_stopping,
        epoch_steps=epoch_steps,
        start_seconds=start_seconds,
        trace_seconds=trace_seconds,
        rank_seconds=rank_seconds,
        sharing_gain=sharing_gain,
        max_gangs_per_device=settings.max_gangs_per_device,
        projects={name: project.to_project() for name, project in settings.projects.items()},
        noise_scale=noise_scale,
    )
    _replay_studies(submitted, named_cluster, names, options, gantt, as_json=as_json)


def _submitted(files: Sequence[Path], working_dir: Path | None) -> list[Submitted]:
    """The studies in these files with their code, all submitted at once."""
    from scamp_service.simulation.replay import Submitted
    from scamp_service.sizing.candidates import code_of
    from scamp_service.sizing.user_workload import with_space
    from scamp_service.study.parse import read_study

    submitted = []
    for file in files:
        spec = read_study(file)
        code = code_of(file, spec, working_dir)
        submitted.append(Submitted(with_space(spec, code), code))
    return submitted


def _replay_studies(
    studies: Sequence[Submitted],
    named_cluster: NamedCluster,
    names: Sequence[str],
    options: ReplayOptions,
    gantt: Path | None,
    *,
    as_json: bool,
) -> None:
    """Replay studies under each policy, draw what ran, and print the figures."""
    from scamp_service.cli.tables.simulation import as_table, footnotes
    from scamp_service.simulation.gantt import write_gantt
    from scamp_service.simulation.replay import simulate as simulated

    with err.status("simulating …"):
        by_policy = {name: simulated(studies, named_cluster, replace(options, policy=name)) for name in names}
    is_single = len(names) == 1
    if gantt is not None:
        title = ", ".join(study.spec.name for study in studies)
        write_gantt(gantt, [(title if is_single else f"{title}: {name}", result) for name, result in by_policy.items()])
    if as_json:
        answers = {name: result.to_json() for name, result in by_policy.items()}
        print(json.dumps(answers[names[0]] if is_single else answers))
        return
    out.print(as_table([("" if is_single else name, result) for name, result in by_policy.items()]))
    for line in dict.fromkeys(line for result in by_policy.values() for line in footnotes(result)):
        out.print(line, style="dim", soft_wrap=True, markup=False)
    if gantt is not None:
        out.print(f"Gantt chart: {gantt}", markup=False, soft_wrap=True)


def _policies(words: str) -> list[str]:
    """The names of policies that are joined with commas. Raises ``InvalidInput`` for one that is not known."""
    from placement.packing.policies import policy_named

    names = [word.strip() for word in words.split(",")]
    for name in names:
        try:
            policy_named(name)
        except ValueError as error:
            raise InvalidInput(f"--policy: {error}") from None
    return names
