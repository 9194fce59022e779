"""Measures how fast this machine's CPU or a GPU runs each kind of operation, under the conditions of a rank.

``python -m workloads.calibration.measure [--quick | --gpu UUID]`` prints a ``DeviceKind`` as one line of JSON. Single
operations of a few models are timed in several rounds; ``--quick`` takes one round of fewer models and messages. For
each kind of operation, operations · a + FLOPs · b + bytes · c + … is fitted to the median seconds, with no negative
term. On a CPU, with one thread and the allocator settings of ranks, there is a term for fresh bytes; on a GPU, one for
FLOPs on 16-bit numbers. The time that steps take between operations, in Python and in autograd, is fitted to whole
steps of the same models. On a CPU, ranks that communicate over gloo are measured too (``workloads.calibration.links``).
For a GPU the result also has the memory that the driver offers, and the memory that a process takes outside its
tensors.
"""

from __future__ import annotations

import argparse
import gc
import json
import signal
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple
from datetime import date

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import nnls

from estimators.devices.catalogue import COMMUNICATORS, KINDS
from estimators.devices.kind import DeviceKind, Figure, Memory, Rate
from estimators.work import OP_KINDS, Work
from workloads.calibration.links import QUICK_SIZES, SIZES, measure_host
from workloads.calibration.machine import cpu_name
from workloads.calibration.probes import Clock, GpuTime, Probe, ProcessorTime, Sample, apart, steps
from workloads.training.warm_up import warm_up

NUM_ROUNDS = 3
STEADY = 0.1  # if the rounds are further apart than this share, the device was too busy to be measured
CPU = torch.device("cpu")


def prepare() -> None:
    """Give this process the threads and the allocator settings of a rank."""
    torch.set_num_threads(1)
    warm_up(CPU, None)


def calibrate_cpu(rounds: int = NUM_ROUNDS, *, quick: bool = False) -> DeviceKind:
    """The rates of this machine's CPU, and the links between ranks on it.

    It takes about 50 seconds; one ``quick`` round takes 6. Call it before torch has computed anything in this process,
    from which ranks are forked.
    """
    source = f"{date.today()}, torch {torch.__version__}"
    host = measure_host(source, rounds, QUICK_SIZES if quick else SIZES)
    prepare()
    rates, steadiness = _rates(CPU, ProcessorTime(), rounds, quick=quick)
    rates["sharded"] = Rate(host.sharded_seconds, 0.0, 0.0)
    provenance = f"measured {date.today()}, 1 thread, torch {torch.__version__}, {steadiness}"
    return DeviceKind(cpu_name(), rates, provenance, links=host.links, cores=host.cores)


def calibrate_gpu(uuid: str, name: str) -> DeviceKind:
    """The rates and memory of the GPU with this UUID; ``name`` is the name of its device kind.

    It must be the only GPU that CUDA shows to this process, and no other process may use it. Figures that one GPU
    cannot show, such as NCCL's memory and links, are taken from ``estimators.devices.catalogue``.
    """
    held_before = held_bytes(uuid)
    device = torch.device("cuda", 0)
    warm_up(device, None)
    rates, steadiness = _rates(device, GpuTime())
    gc.collect()
    torch.cuda.synchronize(device)
    product = torch.cuda.get_device_name(device)
    source = f"{product}, {date.today()}, torch {torch.__version__}, CUDA {torch.version.cuda}"

    def figure_of(num_bytes: int, method: str) -> Figure:
        return Figure(num_bytes, "measured", f"{method}; {source}")

    memory = Memory(
        figure_of(torch.cuda.mem_get_info(device)[1], "memory that the driver offers"),
        figure_of(
            held_bytes(uuid) - held_before - torch.cuda.memory_reserved(device),
            "growth of NVML's used memory, without the memory that PyTorch's allocator reserves",
        ),
        figure_of(torch.cuda.memory_allocated(device), "memory that cuBLAS keeps when all tensors are gone"),
        *COMMUNICATORS,
    )
    listed_kind = next((kind for kind in KINDS if kind.name == name), None)
    links = listed_kind.links if listed_kind else None
    return DeviceKind(name, rates, f"measured, {source}, {steadiness}", memory=memory, links=links)


def held_bytes(uuid: str) -> int:
    """Bytes of a GPU's memory that all processes hold together, from NVML."""
    import pynvml

    pynvml.nvmlInit()
    try:
        info = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByUUID(uuid))
        return int(info.total - info.free)
    finally:
        pynvml.nvmlShutdown()


def _rates(
    device: torch.device, clock: Clock, rounds: int = NUM_ROUNDS, *, quick: bool = False
) -> tuple[dict[str, Rate], str]:
    """Rates by kind of operation, and a phrase that says how far the rounds were apart."""
    probes = [Probe(step, clock) for step in steps(device, quick=quick)]
    for _ in range(rounds):
        for probe in probes:
            probe.measure()
    by_kind: dict[str, list[Sample]] = defaultdict(list)
    for probe in probes:
        for name, sample in probe.samples:
            by_kind[name].append(sample)
    rates = {name: _fit(np.array(samples)) for name, samples in by_kind.items()}
    share = apart(probes)
    advice = "" if share <= STEADY else ": measure again when the machine is quiet"
    steadiness = f"rounds {share:.1%} apart{advice}" if rounds > 1 else "one round"
    return _with_overhead(rates, [(probe.work, probe.seconds) for probe in probes]), steadiness


def _fit(samples: npt.NDArray[np.float64]) -> Rate:
    """The rate fitted to ``samples``; relative errors count, so small operations fit as well as large ones.

    If no sample has 16-bit FLOPs, they get the rate of other FLOPs. If some samples have them, the device is a GPU,
    where fresh memory costs no more than other memory.
    """
    flops, num_bytes, fresh_bytes, half_flops, taken = samples.T
    has_half = bool(half_flops.any())
    special = half_flops if has_half else fresh_bytes
    terms = np.stack([np.ones_like(taken), flops - half_flops, num_bytes, special], 1)
    scale = 1 / np.maximum(terms.max(0), 1)  # brings all terms to a similar size
    weights = 1 / np.sqrt(taken)
    solution, _ = nnls(terms * scale * weights[:, None], taken * weights)
    per_op, per_flop, per_byte, per_special = solution * scale
    return Rate(per_op, per_flop, per_byte, *((0.0, per_special) if has_half else (per_special, per_flop)))


def _with_overhead(rates: Mapping[str, Rate], timed_steps: Sequence[tuple[Work, float]]) -> dict[str, Rate]:
    """``rates`` with the overhead of whole steps, which take longer than the sum of their operations.

    The overhead is fitted as a share of the operations' time plus a fixed time per operation.
    """
    inside = np.array([sum(rate.seconds(work.of(name)) for name, rate in rates.items()) for work, _ in timed_steps])
    counts = np.array([sum(work.of(name)[0] for name in OP_KINDS) for work, _ in timed_steps])
    all_taken = np.array([taken for _, taken in timed_steps])
    terms = np.stack([inside, counts * 1e-6], 1) / all_taken[:, None]
    (share, micros), _ = nnls(terms, np.ones_like(all_taken))
    return {
        name: Rate(rate.per_op * share + micros * 1e-6, *(amount * share for amount in astuple(rate)[1:]))
        for name, rate in rates.items()
    }


def main() -> None:
    """Print the measured ``DeviceKind`` as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", metavar="UUID", help="measure this GPU, the only one that CUDA shows, not the CPU")
    parser.add_argument("--name", default="GPU", help="name of the GPU's device kind (GPU)")
    parser.add_argument("--rounds", type=int, default=NUM_ROUNDS, help=f"rounds over all of the CPU's ({NUM_ROUNDS})")
    parser.add_argument(
        "--quick", action="store_true", help="measure the CPU in one round of fewer models and messages"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # ends the ranks and removes their folder
    torch.manual_seed(0)
    if options.gpu:
        kind = calibrate_gpu(options.gpu, options.name)
    else:
        kind = calibrate_cpu(1 if options.quick else options.rounds, quick=options.quick)
    print(json.dumps(asdict(kind)))


if __name__ == "__main__":
    main()
