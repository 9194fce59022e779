"""Measures how fast ranks on this host communicate over gloo, and how much they slow each other.

Ranks are forks of this process. Together they measure the seconds of each kind of collective
(``estimators.work.COLLECTIVES``) of several sizes, over the first two ranks and over all, as ranks of a study run them.
``measure_host`` fits a latency and a speed for each kind.

FSDP2 and DTensor take time in Python for each collective and for each operation. That time is measured in steps of two
ranks, as processor time of the thread, which does not contain waiting.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from scipy.optimize import nnls
from torch import Tensor
from torch.distributed import FileStore
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from estimators.devices.communication import ring
from estimators.devices.kind import Figure, Link, Links, Pace
from estimators.model import Layout, Plan
from workloads.calibration.machine import num_cores
from workloads.calibration.probes import Transformer
from workloads.parallel.apply import apply_plan
from workloads.parallel.exchanging.gloo import AllGather, ReduceScatter
from workloads.training.gang import process_group
from workloads.training.warm_up import warm_up

SIZES = tuple(2**power for power in (10, 14, 17, 20, 22, 24))
QUICK_SIZES = tuple(2**power for power in (10, 17, 22))
_COPY_BYTES_PER_SECOND = 100e9
"""No link of a host is faster than a copy in its memory; a fit to noisy samples of one round can ask for more."""
MOST_RANKS = 4
TIMEOUT_SECONDS = 300.0
_QUEUED, _LARGEST_QUEUED = 8, 2**22
_NUM_FITS = 5
_ALL_ON_ONE_HOST = 2**16
_CPU = torch.device("cpu")
_FSDP = ("all_gather", "reduce_scatter")
_SUM = dist.ReduceOp(dist.ReduceOp.SUM)


@dataclass(frozen=True, slots=True)
class Timed:
    """Wall-clock seconds of one collective over ``num_ranks``, and processor seconds of the thread that called it."""

    kind: str
    num_ranks: int
    num_bytes: int
    seconds: float
    thread_seconds: float


@dataclass(frozen=True, slots=True)
class LinkMeasurement:
    """Measurements of the ranks. ``slowing`` is how many times as long a rank computes while a second one does, too.

    ``unit_seconds`` is the time in Python for each of FSDP2's gathers and reductions, ``sharded_seconds`` that for each
    operation on DTensors. ``apart`` is the share by which the slowest round took longer than the fastest one.
    """

    samples: Sequence[Timed]
    slowing: float
    unit_seconds: float
    sharded_seconds: float
    apart: float


@dataclass(frozen=True, slots=True)
class OnHost:
    """Links between the ranks of one host, the cores that they share, and seconds of an operation on DTensors."""

    links: Links
    cores: Figure
    sharded_seconds: float


def measure_host(source: str, rounds: int, sizes: Sequence[int] = SIZES) -> OnHost:
    """Measure this host with real ranks and messages of these ``sizes`` in bytes. ``source`` says when and how.

    Three ``rounds`` of all sizes take about 20 seconds, one of ``QUICK_SIZES`` 4.
    """
    cores = num_cores()
    measured = measure_links(max(2, min(MOST_RANKS, 2 * cores)), rounds, sizes)
    return fitted_links(measured, cores, f"{source}, rounds {measured.apart:.0%} apart" if rounds > 1 else source)


def measure_links(num_ranks: int, rounds: int, sizes: Sequence[int] = SIZES) -> LinkMeasurement:
    """The measurement of ``num_ranks`` ranks. Raises ``RuntimeError`` if one fails, or takes too long.

    Ranks are forked, which saves each the seconds to import torch. So nothing may have used torch's threads before.
    """
    forks = multiprocessing.get_context("fork")
    receiver, sender = forks.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            forks.Process(
                target=_run_fork, args=(sender, f"{folder}/store", rank, num_ranks, rounds, sizes), daemon=True
            )
            for rank in range(num_ranks)
        ]
        try:
            for rank in ranks:
                rank.start()
            return _received(receiver, ranks)
        finally:
            for rank in ranks:
                rank.kill()
                rank.join()


def _received(receiver: Connection, ranks: Sequence[ForkProcess]) -> LinkMeasurement:
    """The message of rank 0, unless a rank fails before."""
    deadline, running = time.monotonic() + TIMEOUT_SECONDS, {rank.sentinel: rank for rank in ranks}
    while ready := wait([receiver, *running], max(0.0, deadline - time.monotonic())):
        if receiver in ready:
            measured: LinkMeasurement = receiver.recv()
            return measured
        for ended in ready:
            assert isinstance(ended, int)
            rank = running.pop(ended)
            rank.join()
            if rank.exitcode:
                raise RuntimeError("a rank failed while it measured its links: its error is above")
    raise RuntimeError(f"ranks took more than {TIMEOUT_SECONDS:g} s to measure their links")


def _run_fork(sender: Connection, store: str, rank: int, num_ranks: int, rounds: int, sizes: Sequence[int]) -> None:
    """Measure as one rank; rank 0 sends what was measured."""
    warnings.simplefilter("ignore")  # FSDP2 warns of a model that returns a view
    measured = run_rank(store, rank, num_ranks, rounds, sizes)
    if rank == 0:
        sender.send(measured)


def fitted_links(measured: LinkMeasurement, num_host_cores: int, source: str) -> OnHost:
    """The figures fitted to the samples; relative errors count, so small messages fit as well as large ones.

    Ranks that share cores slow each other while they communicate too, so samples of more ranks than cores count
    accordingly less.
    """

    def figure(value: float, link_name: str) -> Figure:
        return Figure(value, "measured", f"{link_name}; {source}")

    slowing = max(1.0, measured.slowing)
    cores = figure(
        num_host_cores / slowing, f"{num_host_cores} cores; two ranks at once take {slowing:.2f} times as long as one"
    )
    paces: dict[str, Pace] = {}
    for kind in dict.fromkeys(sample.kind for sample in measured.samples):
        samples = [sample for sample in measured.samples if sample.kind == kind]
        start, hop, per_byte = _fit(samples, cores.value)
        if kind in _FSDP:
            start += measured.unit_seconds
        links_in_words = (
            "gloo between ranks of this host, with FSDP2's own time" if kind in _FSDP else "gloo between ranks"
        )
        speed = min(1 / max(per_byte, 1e-15), _COPY_BYTES_PER_SECOND)
        paces[kind] = Pace(figure(start, links_in_words), figure(hop, links_in_words), figure(speed, links_in_words))
    message = paces["message"]
    link = Link(message.hop_seconds, message.bytes_per_second)
    domain = Figure(_ALL_ON_ONE_HOST, "assumed", "all virtual devices are on one host")
    return OnHost(Links(link, link, domain, message.start_seconds, paces, False), cores, measured.sharded_seconds)


def _fit(samples: Sequence[Timed], cores: float) -> tuple[float, float, float]:
    """Seconds of a start, of a hop and of a byte."""
    terms, taken = [], []
    for sample in samples:
        hops, moved_bytes = ring(sample.kind, sample.num_bytes, sample.num_ranks)
        terms.append([1e-6, hops * 1e-6, moved_bytes * 1e-9])
        taken.append(sample.seconds / max(1.0, sample.num_ranks / cores))
    amounts, seconds = np.array(terms), np.array(taken)
    weights = 1 / seconds
    for _ in range(_NUM_FITS):
        solution, _ = nnls(amounts * weights[:, None], seconds * weights)
        # Shares of the measured seconds alone would forgive figures that are too low more than ones that are too high.
        weights = 1 / np.sqrt(seconds * np.maximum(amounts @ solution, seconds / 10))
    start, hop, per_byte = solution
    return start * 1e-6, hop * 1e-6, per_byte * 1e-9


def run_rank(store: str, rank: int, num_ranks: int, rounds: int, sizes: Sequence[int]) -> LinkMeasurement:
    """Measure as ``rank`` of ``num_ranks``, which all call this at the same time."""
    torch.set_num_threads(1)
    with process_group(Plan(1, dp_shard=num_ranks), rank, FileStore(store, num_ranks), _CPU) as mesh:
        assert mesh is not None
        warm_up(_CPU, mesh)
        pair, everyone = DeviceMesh("cpu", [0, 1], mesh_dim_names=("dp",)) if num_ranks > 2 else mesh, mesh
        by_pair: list[Timed] = []
        slowing, unit, sharded, apart = 1.0, 0.0, 0.0, 0.0
        if rank < 2:
            by_pair, apart = _samples(pair.get_group("dp"), rounds, sizes)
            slowing = _slowing(pair.get_group("dp"), rounds)
            unit, sharded = _overheads(pair, by_pair, rounds)
        dist.barrier()
        by_all, apart_of_all = _samples(everyone.get_group("dp"), rounds, sizes) if num_ranks > 2 else ([], 0.0)
        return LinkMeasurement([*by_pair, *by_all], slowing, unit, sharded, max(apart, apart_of_all))


def _samples(group: dist.ProcessGroup, num_rounds: int, sizes: Sequence[int]) -> tuple[list[Timed], float]:
    """One sample for each kind and size: the median of several rounds; and how far the rounds were apart."""
    calls = [(kind, size, call) for size in sizes for kind, call in _calls(group, size)]
    rounds = []
    for _ in range(num_rounds):
        rounds.append([_time(call, 8 if size < 2**20 else 3 if size < 2**24 else 1, group) for _, size, call in calls])
    samples = []
    for (kind, size, _), taken in zip(calls, zip(*rounds, strict=True), strict=True):
        wall, thread = (median(values) for values in zip(*taken, strict=True))
        num = _QUEUED if kind == "queued_all_reduce" else 1
        samples.append(Timed(kind, group.size(), size, wall / num, thread / num))
    sums = [sum(wall for wall, _ in taken) for taken in rounds]
    return samples, max(sums) / min(sums) - 1


def _time(call: Callable[[], object], repeats: int, group: dist.ProcessGroup) -> tuple[float, float]:
    """Mean wall-clock and thread seconds of one of ``repeats`` calls. The mean, because steps wait for every one."""
    call()
    dist.barrier(group)
    began, spent = time.monotonic(), time.thread_time()
    for _ in range(repeats):
        call()
    return (time.monotonic() - began) / repeats, (time.thread_time() - spent) / repeats


def _calls(group: dist.ProcessGroup, num_bytes: int) -> list[tuple[str, Callable[[], object]]]:
    """Collectives of ``num_bytes`` as ranks call them, with their kinds."""
    num_ranks, ops, name = group.size(), torch.ops._c10d_functional, group.group_name
    filled, other = torch.zeros(num_bytes // 4), torch.zeros(num_bytes // 4)
    part = torch.zeros(num_bytes // 4 // num_ranks)
    queued = [torch.zeros(num_bytes // 4) for _ in range(_QUEUED)] if num_bytes <= _LARGEST_QUEUED else []
    gather, reduce = AllGather(), ReduceScatter()

    def waited(tensor: Tensor) -> Tensor:
        result: Tensor = ops.wait_tensor(tensor)
        return result

    def queue() -> None:
        for work in [dist.all_reduce(tensor, group=group, async_op=True) for tensor in queued]:
            work.wait()

    def exchange() -> None:
        # Pairs, as neighbours in a pipeline or in space
        peer = group.rank() ^ 1
        sent = dist.P2POp(dist.isend, filled, group=group, group_peer=peer)
        received = dist.P2POp(dist.irecv, other, group=group, group_peer=peer)
        for work in dist.batch_isend_irecv([sent, received]):
            work.wait()

    calls: list[tuple[str, Callable[[], object]]] = [
        ("all_gather", lambda: gather(filled, part, group)),
        ("reduce_scatter", lambda: reduce(part, filled, group, _SUM)),
        ("all_reduce", lambda: dist.all_reduce(filled, group=group)),
        ("broadcast", lambda: dist.broadcast(filled, group=group, group_src=0)),
        ("message", exchange),
        ("new_all_gather", lambda: waited(ops.all_gather_into_tensor(part, num_ranks, name))),
        ("new_reduce_scatter", lambda: waited(ops.reduce_scatter_tensor(filled, "sum", num_ranks, name))),
        ("new_all_reduce", lambda: waited(ops.all_reduce(filled, "sum", name))),
    ]
    return [*calls, ("queued_all_reduce", queue)] if queued else calls


def _slowing(group: dist.ProcessGroup, rounds: int) -> float:
    """How many times as long rank 0 computes while the other rank does, too: cores may share caches and units."""
    step, ratios = _step(None, Layout()), []
    for _ in range(rounds):
        dist.barrier(group)
        alone = _thread_seconds(step) if group.rank() == 0 else 0.0
        dist.barrier(group)
        together = _thread_seconds(step)
        ratios.append(together / alone if alone else 1.0)
    return median(ratios)


def _overheads(mesh: DeviceMesh, samples: Sequence[Timed], rounds: int) -> tuple[float, float]:
    """Seconds in Python for each collective of FSDP2, and for each operation on DTensors."""
    spent = {sample.kind: sample.thread_seconds for sample in reversed(samples)}  # of the smallest size
    plain_step = _step(None, Layout())
    plain = median(_thread_seconds(plain_step) for _ in range(rounds))
    tensor, sharded = _step(mesh, Layout(dp_shard=1, tp=2)), _step(mesh, Layout(dp_shard=2))
    num_operations, num_reduces = _counts(tensor)
    in_tensor = median(_thread_seconds(tensor) for _ in range(rounds)) - plain
    per_operation = max(0.0, in_tensor - num_reduces * spent["new_all_reduce"]) / num_operations
    units = _DEPTH + 1
    in_fsdp = median(_thread_seconds(sharded) for _ in range(rounds)) - plain
    in_collectives = (2 * units - 1) * spent["all_gather"] + units * spent["reduce_scatter"]
    return max(0.0, in_fsdp - in_collectives) / (3 * units - 1), per_operation


_DEPTH = 4


def _step(mesh: DeviceMesh | None, layout: Layout) -> Callable[[], None]:
    """A training step of a small transformer under ``layout``; its second dimension of samples is a sequence."""
    torch.manual_seed(0)
    model = Transformer(_DEPTH, 64, 64)
    if mesh is not None and layout.tp > 1:
        mesh = DeviceMesh("cpu", mesh.mesh, mesh_dim_names=("tp",))
    apply_plan(model, list(model.blocks), layout, mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_custom_all_gather(AllGather())  # type: ignore[arg-type]
            module.set_custom_reduce_scatter(ReduceScatter())  # type: ignore[arg-type]
    tokens = torch.randint(64, (4, 32))

    def step() -> None:
        model(tokens).logsumexp(-1).mean().backward()
        for parameter in model.parameters():
            parameter.grad = None

    step()
    return step


def _thread_seconds(step: Callable[[], None], repeats: int = 5) -> float:
    began = time.thread_time()
    for _ in range(repeats):
        step()
    return (time.thread_time() - began) / repeats


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations on DTensors, and all-reduces."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_sharded = self.num_reduces = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            self.num_sharded += 1
            return NotImplemented
        self.num_reduces += func is torch.ops._c10d_functional.all_reduce.default
        return func(*args, **(kwargs or {}))


def _counts(step: Callable[[], None]) -> tuple[int, int]:
    with _Counter() as counter:
        step()
    return counter.num_sharded, counter.num_reduces
