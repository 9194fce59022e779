"""Measures how fast this machine's CPU or a GPU does each kind of operation, as ranks do them.

``python -m workloads.calibration.measure [--gpu UUID]`` prints a ``DeviceKind`` as one line of JSON. Single operations
of a few models are timed in several rounds, and for each kind operations · a + FLOPs · b + bytes · c + … is fitted to
the median seconds, no term of it negative: on a CPU, with one thread and the allocator of ranks, there is a term for
fresh bytes, on a GPU one for FLOPs on 16-bit numbers. What steps take between operations, in Python and in autograd,
is fitted to whole steps of the same models. Of a GPU it also tells what memory the driver offers, and what a process
takes of it outside of its tensors.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import nnls

from estimators.devices.catalogue import COMMUNICATORS, KINDS
from estimators.devices.kind import DeviceKind, Figure, Memory, Rate
from estimators.work import OP_KINDS, Work
from workloads.calibration.probes import Clock, GpuTime, Probe, ProcessorTime, Sample, apart, steps
from workloads.training.warm_up import warm_up

NUM_ROUNDS = 3
STEADY = 0.1  # rounds further apart than this do not say what the device can do
CPU = torch.device("cpu")


def prepare() -> None:
    """Make this process like a rank."""
    torch.set_num_threads(1)
    warm_up(CPU, None)


def calibrate_cpu() -> DeviceKind:
    """Takes about 30 seconds of one core."""
    prepare()
    rates, steadiness = _rates(CPU, ProcessorTime())
    return DeviceKind(cpu_name(), rates, f"measured {date.today()}, 1 thread, torch {torch.__version__}, {steadiness}")


def calibrate_gpu(uuid: str, name: str) -> DeviceKind:
    """Of the only GPU that CUDA shows to this process, and nobody else uses; ``name`` is that of its kind.

    What cannot be seen on one GPU, such as NCCL's memory and links, stays what ``estimators.devices.catalogue`` says.
    """
    held_before = held_bytes(uuid)
    device = torch.device("cuda", 0)
    warm_up(device, None)
    rates, steadiness = _rates(device, GpuTime())
    gc.collect()
    torch.cuda.synchronize(device)
    product = torch.cuda.get_device_name(device)
    source = f"{product}, {date.today()}, torch {torch.__version__}, CUDA {torch.version.cuda}"

    def measured(num_bytes: int, what: str) -> Figure:
        return Figure(num_bytes, "measured", f"{what}; {source}")

    memory = Memory(
        measured(torch.cuda.mem_get_info(device)[1], "what the driver offers"),
        measured(
            held_bytes(uuid) - held_before - torch.cuda.memory_reserved(device),
            "growth of what NVML calls used, without what PyTorch's allocator reserves",
        ),
        measured(torch.cuda.memory_allocated(device), "what cuBLAS keeps when all tensors are gone"),
        *COMMUNICATORS,
    )
    known = next((kind for kind in KINDS if kind.name == name), None)
    links = known.links if known else None
    return DeviceKind(name, rates, f"measured, {source}, {steadiness}", memory=memory, links=links)


def held_bytes(uuid: str) -> int:
    """What all processes hold of a GPU, by NVML."""
    import pynvml

    pynvml.nvmlInit()
    try:
        info = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByUUID(uuid))
        return int(info.total - info.free)
    finally:
        pynvml.nvmlShutdown()


def _rates(device: torch.device, clock: Clock) -> tuple[dict[str, Rate], str]:
    """And in words how steady the device was meanwhile."""
    probes = [Probe(step, clock) for step in steps(device)]
    for _ in range(NUM_ROUNDS):
        for probe in probes:
            probe.measure()
    by_kind: dict[str, list[Sample]] = defaultdict(list)
    for probe in probes:
        for name, sample in probe.samples:
            by_kind[name].append(sample)
    rates = {name: _fit(np.array(samples)) for name, samples in by_kind.items()}
    share = apart(probes)
    advice = "" if share <= STEADY else ": measure again when the machine is quiet"
    return _with_overhead(rates, [(probe.work, probe.seconds) for probe in probes]), f"rounds {share:.1%} apart{advice}"


def _fit(samples: npt.NDArray[np.float64]) -> Rate:
    """Relative errors count, so that small operations are fitted as well as large ones.

    Where no sample has numbers of 16 bits, they count as others do. Where some have, the device is a GPU, to which
    fresh memory is no more than any other.
    """
    flops, num_bytes, fresh_bytes, half_flops, taken = samples.T
    has_half = bool(half_flops.any())
    special = half_flops if has_half else fresh_bytes
    terms = np.stack([np.ones_like(taken), flops - half_flops, num_bytes, special], 1)
    scale = 1 / np.maximum(terms.max(0), 1)  # so that the terms are of a size
    weights = 1 / np.sqrt(taken)
    solution, _ = nnls(terms * scale * weights[:, None], taken * weights)
    per_op, per_flop, per_byte, per_special = solution * scale
    return Rate(per_op, per_flop, per_byte, *((0.0, per_special) if has_half else (per_special, per_flop)))


def _with_overhead(rates: Mapping[str, Rate], whole: Sequence[tuple[Work, float]]) -> dict[str, Rate]:
    """Whole steps take longer than their operations: by a share of them, and by some time for each."""
    inside = np.array([sum(rate.seconds(work.of(name)) for name, rate in rates.items()) for work, _ in whole])
    counts = np.array([sum(work.of(name)[0] for name in OP_KINDS) for work, _ in whole])
    all_taken = np.array([taken for _, taken in whole])
    terms = np.stack([inside, counts * 1e-6], 1) / all_taken[:, None]
    (share, micros), _ = nnls(terms, np.ones_like(all_taken))
    return {
        name: Rate(rate.per_op * share + micros * 1e-6, *(amount * share for amount in rate.to_json()[1:]))
        for name, rate in rates.items()
    }


def cpu_name() -> str:
    found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", metavar="UUID", help="instead of the CPU; the only one that CUDA shows")
    parser.add_argument("--name", default="GPU", help="of its kind")
    options = parser.parse_args()
    torch.manual_seed(0)
    kind = calibrate_gpu(options.gpu, options.name) if options.gpu else calibrate_cpu()
    print(json.dumps(kind.to_json()))


if __name__ == "__main__":
    main()
