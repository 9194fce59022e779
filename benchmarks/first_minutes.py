"""Measures what a newcomer waits for: set-up, the first score, the demo, and the first answers of commands.

A checkout is cloned into a temporary folder and set up with a HOME of its own: by uv, with nothing in its cache and
again with everything in it, and by pip. ``make run`` runs there to the end of the demo study, and starts again. Each is
ended by Ctrl-C, and no process may be left. The figures are those of a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parent.parent
MODELS = ("digits", "stdlib_gpt", "blobs", "cells", "conditional", "convnext", "front", "gan", "shapes", "vit_space")
BY_PIP = (
    "import pathlib, environment; environment.uv_pip = lambda *_: []; "
    "environment.setup(pathlib.Path('..').resolve(), dev=False)"
)
PATIENCE_SECONDS = 900.0


def main() -> None:
    """Measure, and print a table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="use this checkout as it is, and estimate two models")
    options = parser.parse_args()
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="scamp-") as directory:
        checkout, home = ROOT, Path(directory, "home")
        home.mkdir()
        data = home / ".scamp"
        fresh = {**os.environ, "HOME": str(home), "SCAMP_DATA_DIR": str(data), "PYTHONUNBUFFERED": "1"}
        for name in ("MAKEFLAGS", "PYTHONDONTWRITEBYTECODE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "UV_CACHE_DIR"):
            fresh.pop(name, None)
        if not options.quick:
            checkout = Path(directory, "scamp")
            subprocess.run(["git", "clone", "-q", str(ROOT), str(checkout)], check=True)
            figures |= set_ups(checkout, fresh)
        figures |= make_run(checkout, fresh, data, to_the_end=True)
        again = make_run(checkout, fresh, data, to_the_end=False)
        figures |= {f"warm_{name}": again[name] for name in ("up_seconds", "left_behind")}
        figures |= commands(checkout, fresh, MODELS[:2] if options.quick else MODELS)
    for name, value in figures.items():
        print(f"{name:32}{value:8.2f}")
    print(json.dumps(figures))


def set_ups(checkout: Path, environment: Mapping[str, str]) -> dict[str, float]:
    """Seconds of ``make setup`` with an empty and with a full cache of uv, and the first in relation to pip's."""
    seconds = []
    by_pip = [sys.executable, "-c", BY_PIP]
    for command, where in ((by_pip, checkout / "deploy"), (["make", "setup"], checkout), (["make", "setup"], checkout)):
        shutil.rmtree(checkout / ".venv", ignore_errors=True)
        began = time.monotonic()
        subprocess.run(command, cwd=where, env=environment, check=True, stdout=sys.stderr)
        seconds.append(time.monotonic() - began)
    pip, cold, warm = seconds
    return {"setup_seconds": cold, "setup_warm_seconds": warm, "setup_vs_pip_ratio": cold / pip}


def make_run(checkout: Path, environment: Mapping[str, str], data: Path, *, to_the_end: bool) -> dict[str, float]:
    """Seconds of ``make run``: until the service is ``up``, and from then on until a first score, until all four things
    of the demo are shown, and until the study ends; ``left_behind`` is the number of processes left after Ctrl-C."""
    began, figures = time.monotonic(), dict[str, float]()
    process = subprocess.Popen(
        ["make", "run"], cwd=checkout, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    url = next(match[1] for line in process.stdout if (match := re.search(r"ScaMP is at (http://\S+)", line)))
    up = time.monotonic()
    figures["up_seconds"] = up - began
    with httpx.Client(base_url=f"{url}/v1") as client:
        while to_the_end and "demo_seconds" not in figures:
            time.sleep(0.25)
            now = time.monotonic() - up
            assert now < PATIENCE_SECONDS, "the demo does not end: look at the service's logs"
            studies = client.get("/studies").json()["items"]
            for study in studies[:1]:
                follow(client, study, now, figures)
    os.killpg(process.pid, signal.SIGINT)
    process.stdout.read()
    process.wait(60)
    return {**figures, "left_behind": float(len(processes_of(data)))}


def follow(client: httpx.Client, study: Mapping[str, Any], now: float, figures: dict[str, float]) -> None:
    """Note in ``figures`` what the study shows for the first time."""
    view = client.get(f"/studies/{study['id']}").json()
    summary = view["summary"]
    if summary["best"]:
        figures.setdefault("first_score_seconds", now)
    widths = {int(width) for width in summary["degrees"]}
    if summary["colocated"] > 1 and len(widths - {1}) > 1 and summary["trials"].get("INFEASIBLE") and summary["healed"]:
        figures.setdefault("four_things_seconds", now)
    if view["finished_at"]:
        figures["demo_seconds"] = now


def commands(checkout: Path, environment: Mapping[str, str], models: tuple[str, ...]) -> dict[str, float]:
    """Seconds of ``scamp --help``, the best of three, and processor seconds of first estimates, the most of all."""
    scamp = str(checkout / ".venv" / "bin" / "scamp")
    helps = [elapsed([scamp, "--help"], environment) for _ in range(3)]
    answers, estimates = [], []
    for model in models:
        with tempfile.TemporaryDirectory(prefix="scamp-") as data:
            command = [scamp, "estimate", str(checkout / "examples" / f"{model}.yaml")]
            answer, estimate = estimated(command, {**environment, "SCAMP_DATA_DIR": data})
        print(f"{model:32}{answer:8.2f}{estimate:8.2f}")
        answers.append(answer)
        estimates.append(estimate)
    return {
        "client_help_seconds": min(helps),
        "estimate_first_cpu_seconds": max(answers),
        "estimate_whole_cpu_seconds": max(estimates),
    }


def estimated(command: list[str], environment: Mapping[str, str]) -> tuple[float, float]:
    """Processor seconds, with those of its children, until ``scamp estimate`` prints the peak of one rank, and until it
    has printed that of all plans."""
    before, first = resource.getrusage(resource.RUSAGE_CHILDREN), 0.0
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "other plans follow" in line:
                first = seconds_of_processes(Path(environment["SCAMP_DATA_DIR"]))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return first, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def seconds_of_processes(data: Path) -> float:
    """Processor seconds of the processes of this data directory, with those of their children that have ended."""
    ticks = 0
    for process in processes_of(data):
        with contextlib.suppress(OSError):
            ticks += sum(map(int, (process / "stat").read_text().rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def elapsed(command: list[str], environment: Mapping[str, str]) -> float:
    """Seconds of a command."""
    began = time.monotonic()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - began


def processes_of(data: Path) -> list[Path]:
    """Folders in /proc of processes that name this data directory in their command line or environment."""
    mark, processes = str(data).encode(), list[Path]()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (process / "cmdline").read_bytes() or mark in (process / "environ").read_bytes():
                processes.append(process)
    return processes


if __name__ == "__main__":
    main()
