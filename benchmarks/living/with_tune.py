"""Runs a study with Ray Tune: each trial has the same number of devices, and trains with the code of our ranks.

``python -m benchmarks.living.with_tune`` reads a list of ``Training`` as JSON, and prints seconds and final losses. Its
Ray is a local one of its own with one CPU for each virtual device. Rank 0 of a trial is Tune's function; the others are
tasks in the placement group of the trial, whose processes Ray keeps for later trials.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
import torch
from ray import tune

from benchmarks.features.running import Reports
from benchmarks.living.alone import Training
from workloads.training.rendezvous import connect_to_store, listen
from workloads.training.runtime import train


class Reported(Reports):
    """Passes on to Tune what rank 0 reports."""

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Report to Tune."""
        tune.report({"step": step, **values})


def main() -> None:
    """Run all trainings, and print {"seconds", "losses"}."""
    trainings = json.loads(Path(sys.argv[1]).read_text())
    num_devices, degree = int(sys.argv[2]), Training(**trainings[0]).planned().world_size
    ray.init(address="local", num_cpus=num_devices, include_dashboard=False, logging_level=logging.ERROR)
    sized = tune.with_resources(trial, tune.PlacementGroupFactory([{"CPU": 1}] * degree))
    with tempfile.TemporaryDirectory(prefix="scamp-tune-") as folder:
        tuner = tune.Tuner(
            sized,
            param_space={"training": tune.grid_search(trainings), "folder": folder},
            tune_config=tune.TuneConfig(metric="loss", mode="min"),
            run_config=tune.RunConfig(storage_path=folder, verbose=0),
        )
        began = time.monotonic()
        results = tuner.fit()
        seconds = time.monotonic() - began
    assert not results.errors, results.errors
    losses = {
        result.config["training"]["seed"]: result.metrics["loss"]
        for result in map(results.__getitem__, range(len(results)))
        if result.config and result.metrics
    }
    print(json.dumps({"seconds": seconds, "losses": [losses[training["seed"]] for training in trainings]}))


def trial(config: Mapping[str, Any]) -> None:
    """Train as rank 0, beside tasks that are the other ranks."""
    training = Training(**config["training"])
    folder = Path(config["folder"], f"checkpoints-{training.seed}")
    world_size = training.planned().world_size
    torch.set_num_threads(1)
    if world_size == 1:
        train(training.job(folder), 0, 1, None, Reported())
        return
    store, address = listen("127.0.0.1", world_size)
    remote = ray.remote(other_rank).options(num_cpus=1)
    other_ranks = [remote.remote(config["training"], str(folder), rank, address) for rank in range(1, world_size)]
    train(training.job(folder), 0, world_size, store, Reported())
    ray.get(other_ranks)


def other_rank(config: Mapping[str, Any], folder: str, rank: int, address: tuple[str, int]) -> None:
    """Train as one of the other ranks."""
    training = Training(**config)
    world_size = training.planned().world_size
    torch.set_num_threads(1)
    train(training.job(Path(folder)), rank, world_size, connect_to_store(address, world_size), Reports())


if __name__ == "__main__":
    main()
