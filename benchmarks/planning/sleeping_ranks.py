"""Ranks that run the schedule of a pipeline in ``torch.distributed.pipelining``, with passes that sleep.

Sleeping takes no processor, so a few cores are enough for many ranks. Ranks are processes that communicate over gloo.
``sleepers`` starts them as a program that reads questions from stdin and writes answers to stdout.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from statistics import median
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _Action, _ComputationType, _PipelineScheduleRuntime

from estimators.pipelining.passes import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Action

WIDTH = 8  # messages of one micro-batch are so small that only their latency counts
_KINDS = {
    FORWARD: _ComputationType.FORWARD,
    BACKWARD: _ComputationType.FULL_BACKWARD,
    BACKWARD_INPUT: _ComputationType.BACKWARD_INPUT,
    BACKWARD_WEIGHT: _ComputationType.BACKWARD_WEIGHT,
}


class _Input(torch.autograd.Function):
    """Sleeps in the forward pass, and while it computes the gradient of its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward_seconds: float, back_seconds: float) -> Tensor:
        ctx.seconds = back_seconds
        time.sleep(forward_seconds)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        time.sleep(ctx.seconds)
        return gradients[0], None, None


class _Weight(torch.autograd.Function):
    """Sleeps while it computes the gradient of a weight."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, back_seconds: float) -> Tensor:
        ctx.seconds = back_seconds
        return weight.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.seconds)
        return gradients[0], None


class _Sleeper(nn.Module):
    def __init__(self, forward_seconds: float, input_seconds: float, weight_seconds: float) -> None:
        super().__init__()
        self._seconds = forward_seconds, input_seconds, weight_seconds
        self.weight = nn.Parameter(torch.eye(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        forward_seconds, input_seconds, weight_seconds = self._seconds
        hidden = cast(Tensor, _Input.apply(x, forward_seconds, input_seconds))
        weight = cast(Tensor, _Weight.apply(self.weight, weight_seconds))
        return nn.functional.linear(hidden, weight)


def _answer(question: Mapping[str, Any], rank: int) -> Any:
    if "pings" in question:
        return median(_pings(question["pings"], rank)) if rank < 2 else None
    return list(_steps(question, rank))


def _pings(num: int, rank: int) -> Iterator[float]:
    """Yield the seconds of a message, half of the time until its answer arrives."""
    message = torch.zeros(1, WIDTH)
    for _ in range(num):
        began = time.monotonic()
        for turn in (0, 1):
            kind = dist.isend if turn == rank else dist.irecv
            for work in dist.batch_isend_irecv([dist.P2POp(kind, message, 1 - rank)]):
                work.wait()
        yield (time.monotonic() - began) / 2


def _steps(question: Mapping[str, Any], rank: int) -> Iterator[tuple[float, float]]:
    """Yield when each step begins and ends on this rank. All processes of a machine have one monotonic clock."""
    num_stages, num = len(question["costs"]), question["num"]
    orders: dict[int, list[_Action | None]] = {
        number: [_of_torch(Action(*action)) for action in order] for number, order in enumerate(question["orders"])
    }
    mine = sorted({action.stage_index for action in orders[rank] if action is not None})
    device = torch.device("cpu")
    stages = [PipelineStage(_Sleeper(*question["costs"][stage]), stage, num_stages, device) for stage in mine]
    runtime = _PipelineScheduleRuntime(stages, num, loss_fn=nn.functional.mse_loss)
    runtime._prepare_schedule_with_comms(orders)
    x = torch.ones(num, WIDTH)
    inputs = (x,) if 0 in mine else ()
    target: dict[str, Any] = {"target": x, "losses": []} if num_stages - 1 in mine else {}
    for _ in range(question["steps"] + 1):
        dist.barrier()
        began = time.monotonic()
        runtime.step(*inputs, **target)
        yield began, time.monotonic()


def _of_torch(action: Action) -> _Action:
    return _Action(action.stage, _KINDS[action.kind], action.micro_batch)


def _host(num_ranks: int, file: str) -> None:
    """Fork the ranks, which then need not import torch, and pass questions and answers on."""
    context, ranks = get_context("fork"), []
    for rank in range(num_ranks):
        ours, theirs = context.Pipe()
        context.Process(target=_serve, args=(rank, num_ranks, file, theirs), daemon=True).start()
        theirs.close()
        ranks.append(ours)
    for line in sys.stdin:
        for connection in ranks:
            connection.send(line)
        answers: dict[int, Any] = {}
        while len(answers) < num_ranks:
            for ready in wait([connection for rank, connection in enumerate(ranks) if rank not in answers]):
                assert isinstance(ready, Connection)
                try:
                    answers[ranks.index(ready)] = ready.recv()
                except EOFError:  # the rank has said why, on stderr; the others may wait for it forever
                    os._exit(1)
        print(json.dumps([answers[rank] for rank in range(num_ranks)]), flush=True)


def _serve(rank: int, num_ranks: int, file: str, questions: Connection) -> None:
    torch.set_num_threads(1)
    with contextlib.suppress(OSError):  # only root may: other work on this machine then delays no rank that wakes up
        os.nice(-15)
    dist.init_process_group("gloo", rank=rank, world_size=num_ranks, store=dist.FileStore(file, num_ranks))
    while True:
        questions.send(_answer(json.loads(questions.recv()), rank))


if __name__ == "__main__":
    _host(int(sys.argv[1]), sys.argv[2])
