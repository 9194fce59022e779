"""Reads the published traces of GPU clusters that the user has, or draws jobs like theirs, for ``scamp simulate``.

Files are recognised by their columns, and only read. Known are the job lists of Sia's artifact (``philly.csv``,
``helios_saturn.csv``), those of Helios (``cluster_log.csv``), and the pods of Alibaba (``openb_pod_list_*.csv``).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from placement.model import Cluster
from placement.packing.policies import policy_named
from placement.simulation.generated import CLUSTERS, TraceJob, at_load, generate, rigid_jobs
from placement.simulation.progress import Domains
from placement.simulation.schedule import Schedule, ScheduleOptions, schedule
from scamp_service.errors import InvalidInput

DRAWN_LOAD = 0.9
"""Load of a drawn trace where the user names none: its arrivals fit no cluster but the one it comes from."""

Row = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Replayed:
    """How to replay a trace: its first ``num_jobs``, at a load (None: at the times of the file)."""

    num_jobs: int = 1000
    seed: int = 0
    load: float | None = None
    max_gangs_per_device: int = 4


def replay_trace(jobs: Sequence[TraceJob], cluster: Cluster, policy: str, max_gangs_per_device: int) -> Schedule:
    """Run the jobs under a policy, each on as many devices as it asked for, for as long as its trace says.

    Jobs that asked for parts of one GPU do not slow each other: their durations are those measured next to others.
    """
    full_speed = Domains({}, {device.id: float(max_gangs_per_device) for device in cluster.devices})
    return schedule(
        rigid_jobs(jobs, cluster),
        cluster,
        policy_named(policy),
        ScheduleOptions(max_gangs_per_device=max_gangs_per_device, domains=full_speed),
    )


def trace_jobs(name: str, num_gpus: int, how: Replayed) -> list[TraceJob]:
    """The jobs of a trace: drawn if ``name`` is one of ``CLUSTERS``, or else from a file or folder.

    Raises ``InvalidInput``.
    """
    if how.load is not None and not how.load > 0:
        raise InvalidInput(f"--load must be above 0, got {how.load:g}")
    if name.lower() in CLUSTERS:
        jobs = generate(CLUSTERS[name.lower()], how.num_jobs, how.seed, most_gpus=num_gpus)
        return at_load(jobs, num_gpus, how.load or DRAWN_LOAD)
    jobs = read_trace(Path(name), how.num_jobs)
    return jobs if how.load is None else at_load(jobs, num_gpus, how.load)


def schedule_json(result: Schedule) -> dict[str, Any]:
    """All figures, and when and where each job ran."""
    return {
        "makespan_seconds": result.makespan,
        "mean_completion_seconds": result.mean_completion,
        "mean_wait_seconds": result.mean_wait,
        "p99_wait_seconds": result.wait_at(0.99),
        "device_hours": result.device_seconds / 3600,
        "utilisation": result.utilisation,
        "waited_seconds": dict(result.waited),
        "never": sorted(result.never),
        "jobs": [
            {"id": run.id, "devices": list(run.devices), "arrived": run.arrived, "start": run.start, "end": run.end}
            for run in result.runs
        ],
    }


def read_trace(path: Path, most: int) -> list[TraceJob]:
    """The first jobs of a trace by their arrival, which counts from the first. Raises ``InvalidInput``."""
    if not path.exists():
        raise InvalidInput(f"--traces names no file or folder, nor one of {', '.join(CLUSTERS)}: {path}")
    readers = {file: read for file in _files(path) if (read := _reader(file)) is not None}
    if not readers:
        raise InvalidInput(
            f"no trace is known under {path}: a CSV file with the columns of Sia's, Helios's or Alibaba's job lists is"
        )
    if len(readers) > 1:
        names = ", ".join(str(file) for file in islice(readers, 5))
        raise InvalidInput(f"{len(readers)} traces are under {path}: name one of them with --traces, such as {names}")
    [(file, read)] = readers.items()
    with file.open(newline="", encoding="utf-8") as opened:
        try:
            rows = sorted((job for row in csv.DictReader(opened) for job in read(row)), key=lambda job: job.at)
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidInput(f"{file} is not the trace that its columns say: {error}") from None
    if not rows:
        raise InvalidInput(f"{file} has no job with a GPU that has run")
    first = rows[0].at
    return [TraceJob(f"{n}", job.at - first, job.num_gpus, job.seconds, job.share) for n, job in enumerate(rows[:most])]


def _files(path: Path) -> Iterator[Path]:
    yield from [path] if path.is_file() else sorted(path.rglob("*.csv"))


def _reader(file: Path) -> Callable[[Row], Iterator[TraceJob]] | None:
    with file.open(newline="", encoding="utf-8", errors="replace") as opened:
        columns = set(next(csv.reader(opened), ()))
    return next((read for needed, read in READERS if needed <= columns), None)


def _sia(row: Row) -> Iterator[TraceJob]:
    seconds, gpus = float(row["duration"]), int(float(row["num_gpus"]))
    if gpus > 0 and seconds > 0:
        yield TraceJob("", _timestamp(row["timestamp"]), gpus, seconds)


def _helios(row: Row) -> Iterator[TraceJob]:
    seconds, gpus = float(row["duration"]), int(float(row["gpu_num"]))
    if gpus > 0 and seconds > 0:
        yield TraceJob("", _timestamp(row["submit_time"]), gpus, seconds)


def _openb(row: Row) -> Iterator[TraceJob]:
    gpus = int(row["num_gpu"])
    if gpus < 1 or not row["scheduled_time"]:
        return
    seconds = float(row["deletion_time"]) - float(row["scheduled_time"])
    share = float(row["gpu_milli"]) / 1000 if gpus == 1 else 1.0
    if seconds > 0 and math.isfinite(share) and share > 0:
        yield TraceJob("", float(row["creation_time"]), gpus, seconds, min(1.0, share))


def _timestamp(words: str) -> float:
    return datetime.fromisoformat(words).replace(tzinfo=UTC).timestamp()


READERS: Sequence[tuple[set[str], Callable[[Row], Iterator[TraceJob]]]] = (
    ({"timestamp", "duration", "num_gpus"}, _sia),
    ({"submit_time", "duration", "gpu_num"}, _helios),
    ({"creation_time", "deletion_time", "scheduled_time", "num_gpu", "gpu_milli"}, _openb),
)
