"""The GPUs that ScaMP can estimate for without having one, and the source of each figure. None of them was timed here.

A GPU's memory is the total that out-of-memory messages on such devices report, and the part of it that others measured
a process to take. Seconds come from datasheet peaks and the shares of them below. These shares are assumptions: they
rank plans, and may be wrong by a factor. AMD's devices are left out, because no figure was found for the memory outside
of their allocator.
"""

from __future__ import annotations

from collections.abc import Mapping

from estimators.devices.kind import DeviceKind, Figure, Link, Links, Memory, Rate
from estimators.model import GIB, MIB

COMPUTE_SHARE = 0.6
"""Assumed share of the datasheet's FLOP/s that matrix products, convolutions and attention reach. Whole training steps
of large transformers reach 0.44 to 0.52 (Narayanan et al., "Efficient Large-Scale Language Model Training on GPU
Clusters Using Megatron-LM", SC 2021, table 1, A100), and wait for memory in between."""
BANDWIDTH_SHARE = 0.8
"""Assumed share of the datasheet's bytes per second that operations reach."""
LAUNCH_SECONDS = 5e-6
"""Assumed seconds for each operation: the time that Python and the driver take to start its kernel."""
UNVERIFIED = (
    f"datasheet peaks × {COMPUTE_SHARE:g} (FLOP/s) and × {BANDWIDTH_SHARE:g} (memory), {LAUNCH_SECONDS * 1e6:g} µs an "
    "operation: assumed, not measured"
)

_GB = 1e9
_COMPUTING = ("matmul", "convolution", "attention")
_MOVING = ("normalisation", "lookup", "function", "copy", "other")

_CONTEXT = Figure(320 * MIB, "literature", "CUDA 11.7 and newer load kernels lazily: about 300 MB (pytorch #107667)")
COMMUNICATORS = (
    Figure(544 * MIB, "literature", "NCCL, 2 ranks on A100 with NVLink (nccl #964)"),
    Figure(688 * MIB, "literature", "NCCL, 3 and 4 ranks on A100 with NVLink (nccl #964); other kinds may differ"),
)
_TUNING = "NCCL src/graph/tuning.cc, ring"
_NETWORK = "NCCL src/graph/topo.h: 12 GB/s of 100 Gbit/s"
_START = Figure(8.4e-6, "literature", _TUNING)
_HOP_ACROSS = Figure(9.6e-6, "literature", _TUNING)


def gpu(name: str) -> DeviceKind:
    """The GPU of this name, in upper or lower case. Raises ValueError with the known names if there is none."""
    kinds = {kind.name.upper(): kind for kind in KINDS}
    kind = kinds.get(name.strip().upper())
    if kind is None:
        raise ValueError(f"unknown device {name!r}: choose one of {', '.join(kind.name for kind in KINDS)}")
    return kind


def _kind(
    name: str,
    total: Figure,
    teraflops: Mapping[str, float],
    gigabytes_per_second: float,
    links: Links,
    *,
    workspace_mib: float = 8.125,
) -> DeviceKind:
    """The kind with these peaks. ``teraflops`` are dense: ``fp32``, ``half`` and, if there are such units, ``tf32``."""
    full, half = teraflops["fp32"], teraflops["half"]
    # torch's defaults: cuDNN may use TF32, matrix products may not
    peaks = {"matmul": full, "convolution": teraflops.get("tf32", full), "attention": full}
    per_byte = 1 / (BANDWIDTH_SHARE * gigabytes_per_second * _GB)
    rates = {
        kind: Rate(LAUNCH_SECONDS, _per_flop(peaks[kind]), per_byte, per_half_flop=_per_flop(half))
        for kind in _COMPUTING
    } | {kind: Rate(LAUNCH_SECONDS, 0.0, per_byte) for kind in _MOVING}
    # Forward and backward pass run in two threads, each with a handle and its workspace.
    workspaces = Figure(
        2 * workspace_mib * MIB, "literature", "aten/src/ATen/cuda/CublasHandlePool.cpp: one for each of two threads"
    )
    memory = Memory(total, _CONTEXT, workspaces, *COMMUNICATORS)
    return DeviceKind(name, rates, UNVERIFIED, False, memory, links)


def _per_flop(teraflops: float) -> float:
    return 1 / (COMPUTE_SHARE * teraflops * 1e12)


def _nvlink(num_links: int, gigabytes_per_second: float, network: Figure) -> Links:
    """Links of one GPU to all others in a node of eight."""
    speed = Figure(
        num_links * gigabytes_per_second * _GB,
        "literature",
        f"NCCL src/graph/topo.h: {num_links} links of {gigabytes_per_second:g} GB/s",
    )
    inside = Link(Figure(3.4e-6, "literature", _TUNING), speed)
    return Links(inside, Link(_HOP_ACROSS, network), Figure(8, "datasheet", "GPUs of a DGX"), _START)


def _pcie(gigabytes_per_second: float, generation: int) -> Links:
    speed = Figure(
        gigabytes_per_second * _GB, "literature", f"NCCL src/graph/topo.h: PCIe {generation} × 16, between any two GPUs"
    )
    return Links(
        Link(Figure(5.7e-6, "literature", _TUNING), speed),
        Link(_HOP_ACROSS, Figure(12 * _GB, "assumed", f"a host has one adapter of 100 Gbit/s; {_NETWORK}")),
        Figure(8, "assumed", "GPUs of a host"),
        _START,
    )


def _network(num_adapters: int, gbits: int, node: str) -> Figure:
    """Bytes per second of a node with all its adapters."""
    source = f"{node} has {num_adapters} adapters of {gbits} Gbit/s; {_NETWORK}"
    return Figure(num_adapters * gbits / 100 * 12 * _GB, "datasheet", source)


def _total(gib: float, source: str) -> Figure:
    return Figure(int(gib * GIB), "literature", f"{gib:g} GiB in total, {source}")


_DGX_1 = _network(4, 100, "a DGX-1")
_DGX_A100 = _network(8, 200, "a DGX A100")
_DGX_H100 = _network(8, 400, "a DGX H100")
_HOPPER = {"fp32": 67.0, "tf32": 494.5, "half": 989.5}  # datasheets of H100 SXM and H200 SXM, without sparsity

KINDS = (
    # Peaks: Tesla P100 (SXM2) datasheet
    _kind(
        "P100",
        _total(15.90, "in out-of-memory messages from Colab and Kaggle, which offer P100s"),
        {"fp32": 10.6, "half": 21.2},
        732,
        _nvlink(4, 18, _DGX_1),
    ),
    # Tesla V100 (SXM2) datasheet
    _kind(
        "V100-16",
        _total(15.78, "in an out-of-memory message (kchengiva/Shift-GCN #34)"),
        {"fp32": 15.7, "half": 125},
        900,
        _nvlink(6, 20, _DGX_1),
    ),
    _kind(
        "V100-32",
        _total(31.75, "in an out-of-memory message (uni-medical/SAM-Med3D #8)"),
        {"fp32": 15.7, "half": 125},
        900,
        _nvlink(6, 20, _DGX_1),
    ),
    # NVIDIA T4 datasheet; bandwidth: Turing whitepaper
    _kind(
        "T4",
        _total(14.56, "in an out-of-memory message (Zheng-Chong/CatVTON #133)"),
        {"fp32": 8.1, "half": 65},
        320,
        _pcie(12, 3),
    ),
    # NVIDIA A10 datasheet; its memory is taken from the A10G, which also has 24 GB
    _kind(
        "A10",
        _total(21.99, "in out-of-memory messages from A10G (mistralai/mistral-finetune #69)"),
        {"fp32": 31.2, "tf32": 62.5, "half": 125},
        600,
        _pcie(24, 4),
    ),
    # A10G: NVIDIA's datasheet was not at hand, so these FLOP/s are not checked; bandwidth as of the A10
    _kind(
        "A10G",
        _total(21.99, "in an out-of-memory message (mistralai/mistral-finetune #69)"),
        {"fp32": 35, "tf32": 35, "half": 70},
        600,
        _pcie(24, 4),
    ),
    # NVIDIA L4 datasheet, half of the figures with sparsity
    _kind(
        "L4",
        _total(22.03, "the lowest of several messages; nvidia-smi says 22.5 (lmstudio-bug-tracker #1638)"),
        {"fp32": 30.3, "tf32": 60, "half": 121},
        300,
        _pcie(24, 4),
    ),
    # NVIDIA L40S datasheet
    _kind(
        "L40S",
        _total(44.42, "in an out-of-memory message from eight L40S (stepfun-ai/Step-Video-T2V #8)"),
        {"fp32": 91.6, "tf32": 183, "half": 362.05},
        864,
        _pcie(24, 4),
    ),
    # NVIDIA A100 (SXM) datasheet
    _kind(
        "A100-40",
        _total(39.50, "in an out-of-memory message (TianheWu/CoSeR #10)"),
        {"fp32": 19.5, "tf32": 156, "half": 312},
        1555,
        _nvlink(12, 20, _DGX_A100),
    ),
    _kind(
        "A100-80",
        _total(79.25, "in an out-of-memory message (levihsu/OOTDiffusion #235)"),
        {"fp32": 19.5, "tf32": 156, "half": 312},
        2039,
        _nvlink(12, 20, _DGX_A100),
    ),
    _kind(
        "H100",
        _total(79.11, "in an out-of-memory message (vllm-project/vllm #27508)"),
        _HOPPER,
        3350,
        _nvlink(18, 20.6, _DGX_H100),
        workspace_mib=32,
    ),
    _kind(
        "H200",
        _total(139.72, "the lowest of several messages; nvidia-smi says 140.4 (sgl-project/sglang #3196)"),
        _HOPPER,
        4800,
        _nvlink(18, 20.6, _DGX_H100),
        workspace_mib=32,
    ),
    # NVIDIA Blackwell datasheet, a GPU of HGX B200, half of the figures with sparsity
    _kind(
        "B200",
        _total(178.35, "in an out-of-memory message (unslothai/unsloth #3411)"),
        {"fp32": 75, "tf32": 1100, "half": 2250},
        7700,
        _nvlink(18, 40.1, _network(8, 400, "a DGX B200")),
        workspace_mib=32,
    ),
    # NVIDIA Turing GPU architecture whitepaper, reference clocks, FP16 with FP32 accumulate; not checked again
    _kind(
        "RTX2080Ti",
        _total(10.76, "in an out-of-memory message (JDAI-CV/image-captioning #11)"),
        {"fp32": 13.4, "half": 53.8},
        616,
        _pcie(12, 3),
    ),
    # NVIDIA Ampere GA102 GPU architecture whitepaper, FP16 with FP32 accumulate
    _kind(
        "RTX3090",
        _total(23.70, "in an out-of-memory message (GaoLii/DSP #10)"),
        {"fp32": 35.6, "tf32": 35.6, "half": 71},
        936,
        _pcie(24, 4),
    ),
    # NVIDIA Ada GPU architecture whitepaper, FP16 with FP32 accumulate
    _kind(
        "RTX4090",
        _total(23.64, "in an out-of-memory message (ali-vilab/VGen #104)"),
        {"fp32": 82.6, "tf32": 82.6, "half": 165.2},
        1008,
        _pcie(24, 4),
    ),
)
