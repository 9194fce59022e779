"""Measures the seconds from ``make run`` until the environment is ready, the API answers and the first trial trains.

The cold start clones the checkout into a temporary folder, makes its environment from nothing and waits for the demo
study to end; the warm start starts it again there. Each start is ended by Ctrl-C. Then the benchmark counts the
processes that are left; there must be none.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Start ScaMP twice, and print a table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="use this checkout; the warm start resumes the interrupted first study"
    )
    options = parser.parse_args()
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="scamp-") as directory:
        data, checkout = Path(directory, "data"), Path(directory, "scamp")
        if options.quick:
            checkout = ROOT
        else:
            subprocess.run(["git", "clone", "-q", str(ROOT), str(checkout)], check=True)
        figures["fresh" if options.quick else "cold"] = start(checkout, data, to_the_end=not options.quick)
        figures["warm"] = start(checkout, data)
    print(f"{'':6}{'ready':>8}{'API':>8}{'trial':>8}{'left behind':>13}   (seconds since make run; processes)")
    for name, row in figures.items():
        print(f"{name:6}{row['ready']:>8.1f}{row['api']:>8.1f}{row['trial']:>8.1f}{row['left_behind']:>13.0f}")
    print(json.dumps(figures))


def start(checkout: Path, data: Path, *, to_the_end: bool = False) -> dict[str, float]:
    """Run ``make run`` until a trial trains, and stop it; ``to_the_end`` waits for the study to finish first.

    Returns seconds since ``make run``: ``ready`` (the environment exists), ``api`` (it answers) and ``trial`` (the
    first trial trains); and ``left_behind``, the number of processes left after Ctrl-C.
    """
    began, now = time.monotonic(), time.time()
    environment = {**os.environ, "SCAMP_DATA_DIR": str(data), "PYTHONUNBUFFERED": "1"}
    environment.pop("MAKEFLAGS", None)
    process = subprocess.Popen(
        ["make", "run"], cwd=checkout, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    url, ready = "", 0.0
    for line in process.stdout:
        if match := re.search(r"ScaMP is at (http://\S+)\s+\((\d+\.\d) s\)", line):
            url = match[1]
            ready = time.monotonic() - began - float(match[2])
            break
    api = time.monotonic() - began
    with httpx.Client(base_url=f"{url}/v1") as client:
        trial = wait_for_trial(client, now) - now
        while to_the_end and client.get("/studies/1").json()["finished_at"] is None:
            time.sleep(1.0)
    os.killpg(process.pid, signal.SIGINT)
    process.stdout.read()
    process.wait(60)
    return {"ready": ready, "api": api, "trial": trial, "left_behind": float(count_processes(data))}


def wait_for_trial(client: httpx.Client, now: float, patience_seconds: float = 300.0) -> float:
    """The time at which the first trial after ``now`` started to train; it polls seldom, as requests cost CPU time.

    Raises ``TimeoutError`` after ``patience_seconds``.
    """
    while time.time() - now < patience_seconds:
        studies = client.get("/studies", params={"limit": 100}).json()["items"]
        for path in (f"/studies/{study['id']}/trials" for study in studies):
            for trial in client.get(path, params={"state": "RUNNING"}).json()["items"]:
                attempts = client.get(f"{path}/{trial['number']}").json()["attempts"]
                if started := [a["started_at"] for a in attempts if a["started_at"] and a["started_at"] > now]:
                    return float(min(started))
        time.sleep(0.25)
    raise TimeoutError(f"no trial started within {patience_seconds:.0f} s: look for the reason in the service's output")


def count_processes(data: Path) -> int:
    """Number of other processes that name this data directory in their command line or environment."""
    mark, left = str(data).encode(), 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            left += mark in (process / "cmdline").read_bytes() or mark in (process / "environ").read_bytes()
        except OSError:
            continue
    return left - (mark in Path("/proc/self/environ").read_bytes())


if __name__ == "__main__":
    main()
