"""The trace process: says what one rank of a candidate needs under a layout, as one line of JSON per request.

``python -m workloads.sandbox`` reads requests on stdin and answers on stdout. It imports torch once, and never
runs a user's code itself: a fork with a deadline and a memory limit serves each request. The fork's output is kept
apart from the answers, so a model that hangs, crashes or prints can spoil only its own answer. Nothing is cached here;
``scamp_service`` does that.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import IO, Any

import torch

from estimators.model import Layout
from estimators.tracing.session.modes import keep_frozen
from estimators.tracing.tracer import trace
from workloads.loading import BUILT_INS, load_workload
from workloads.models.transformer import Block
from workloads.protocol import Workload
from workloads.sandbox.fork import die_with_parent, in_fork
from workloads.sandbox.libraries import import_all
from workloads.sandbox.recipe import recipe_of


def main() -> None:
    """Serve until stdin ends, or nobody reads the answers any more."""
    die_with_parent()
    try:
        _serve()
    except BrokenPipeError:  # our parent died before the kernel knew that we die with it
        os._exit(1)


def _serve() -> None:
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    warm_up_tracing()
    _write(answers, {"ready": True})
    for line in requests:
        request = json.loads(line)
        if request["workload"] in BUILT_INS:
            load_workload(request["workload"], None)  # imported once, not in every fork
        answer = in_fork(request, (requests, answers))
        imported = answer.pop("imported", [])
        _write(answers, {"id": request["id"], **answer})
        if imported:
            import_all(imported)
            keep_frozen()


def _write(stream: IO[bytes], message: Mapping[str, Any]) -> None:
    stream.write(json.dumps(message).encode() + b"\n")
    stream.flush()


def warm_up_tracing() -> None:
    """Trace a small model, so that torch's lazy imports are done before any fork."""
    torch.set_num_threads(1)
    # Where torch is built for CUDA but sees no GPU, its fake tensors pretend that there are eight. The first backward
    # pass starts a thread for each device that there is, and no fork can compute gradients when it has started one.
    torch.ones(1, requires_grad=True).sum().backward()  # type: ignore[no-untyped-call]
    trace(recipe_of(_WarmUp({})), Layout(), 4)
    keep_frozen()  # otherwise a garbage collection in a fork would copy the pages of all these objects


class _WarmUp(Workload):
    num_train = num_eval = 8

    def build_model(self) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.ModuleList([Block(8, 2, 4.0, 0.1, 1.0, causal=True)])[0])

    def train_batch(self, indices: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(indices), 4, 8)

    eval_batch = train_batch

    def loss(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(batch).flatten(1), torch.zeros(len(batch), dtype=torch.long))

    def evaluate(self, model: torch.nn.Module, batch: torch.Tensor) -> dict[str, torch.Tensor]:
        return {}

    def blocks(self, model: torch.nn.Module) -> list[torch.nn.Module]:
        return list(model.children())


if __name__ == "__main__":
    main()
