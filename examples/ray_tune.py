"""Ray Tune with ScaMP's sizes: each trial gets the processes and the memory that its candidate is predicted to need.

    PYTHONPATH=. .venv/bin/python examples/ray_tune.py

The model is the ConvNeXt of ``convnext.py``. Small ones train in one process, larger ones in two, and one that is too
large for two fails with the reason. Two virtual devices of 96 MiB; docs/optuna.md says how to name GPUs.
"""

import json
import socket
from pathlib import Path

import ray
import torch
from ray import tune
from ray.util import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from scamp import scamp_resources
from workloads.loading import load_workload
from workloads.parallel.apply import spread_optimizer
from workloads.training.building import build_model
from workloads.training.gang import process_group
from workloads.training.rendezvous import connect_to_store, listen
from workloads.training.samples import batch_indices, rank_slices
from workloads.training.step import train_step

HERE = Path(__file__).resolve().parent
STEPS = 3


def train_rank(rank, plan, config, store):
    """Train one rank of a trial under its plan; returns the losses of the steps."""
    workload = load_workload("convnext.py:Digits", HERE)(config)
    device = torch.device("cpu")
    with process_group(plan, rank, store, device) as mesh:
        model = build_model(workload, plan, seed=0, device=device, mesh=mesh)
        optimizer = spread_optimizer(workload.optimizer(model), plan.layout, mesh)
        losses = []
        for step in range(STEPS):
            indices = batch_indices(workload.num_train, plan.batch, step, seed=0)
            batches = map(workload.train_batch, rank_slices(indices, plan, rank))
            losses.append(float(train_step(workload, model, optimizer, batches, plan.num_micro_batches)))
    return losses


@ray.remote
def other_rank(rank, plan, config, address):
    """A rank beside rank 0, in a process of its own."""
    train_rank(rank, plan, config, connect_to_store(address, plan.world_size))


def make_trainable(resources):
    """The trainable of Tune, which is rank 0 of its trial and starts the others, each in its bundle."""

    def train(config):
        plan = resources.plan(config)  # raises for a candidate that fits nowhere: its trial fails, others go on
        group = get_current_placement_group()
        host = socket.gethostbyname(ray.util.get_node_ip_address())
        store, address = listen(host, plan.world_size) if plan.world_size > 1 else (None, None)
        places = [PlacementGroupSchedulingStrategy(group, index) for index in range(plan.world_size)]
        others = [
            other_rank.options(scheduling_strategy=places[rank]).remote(rank, plan, config, address)
            for rank in range(1, plan.world_size)
        ]
        losses = train_rank(0, plan, config, store)
        ray.get(others)
        tune.report({"loss": losses[-1], "plan": str(plan), "num_bundles": group.bundle_count})

    return tune.with_resources(train, resources)


def main():
    """Run three trials, and print a line of JSON for each."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    space = {"depth": 2, "width": tune.grid_search([32, 160, 288]), "lr": tune.loguniform(1e-4, 4e-3), "batch": 32}
    workload = str(HERE / "convnext.py:Digits")
    with scamp_resources(workload, count=2, mib=96, when_too_large="fail trial") as resources:
        results = tune.Tuner(make_trainable(resources), param_space=space).fit()
        for result in results:
            found = result.metrics or {}
            shown = {name: found.get(name) for name in ("loss", "plan", "num_bundles")}
            print(
                json.dumps({"width": result.config["width"], **shown, "error": str(result.error or "").split("\n")[-1]})
            )


if __name__ == "__main__":
    main()
