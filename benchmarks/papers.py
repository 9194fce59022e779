"""Measures or simulates tables and figures of the papers that ScaMP takes ideas from, beside the papers' values.

Each entry reuses another benchmark, as small as this machine needs it. A paper's value is that of its abstract or of
the table that is named; where a paper has only a curve, the entry says so. Prints a line for each entry, and last the
figures as one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.curves.forks import in_forks
from benchmarks.features import trained, trainings_part
from benchmarks.features.feature import ONE, REPLICAS, Feature
from benchmarks.features.papers import DIVIDED, PAPERS
from benchmarks.features.running import predicted_peak, reports_of
from benchmarks.features.table import EXAMPLES
from benchmarks.packing import studies_part, traces_part
from benchmarks.planning import search_part
from benchmarks.planning.gpt import Model, capacity_bytes, ways_of
from benchmarks.running.part import Part
from benchmarks.running.results import head_commit, setting_words
from benchmarks.throughput import unlike_part
from benchmarks.throughput.table_updates import seconds_ratios
from estimators.axes import Spread
from estimators.devices.catalogue import gpu
from estimators.model import Plan
from estimators.trace import profile_of
from estimators.tracing.tracer import trace
from placement.exact.search import search
from placement.exact.ways import Devices
from placement.planning.step_seconds import predicted_step
from workloads.loading import load_workload
from workloads.sandbox.recipe import recipe_of

SECONDS = 280.0
"""Limit of one training."""
BEGIN, END = "<!-- written by python -m benchmarks.papers -->\n", "<!-- end -->\n"
DIGITS = Feature("digits", "larger_batches.py:Digits", (ONE,), folder=EXAMPLES)
FEATURES = {feature.name: feature for feature in PAPERS}


@dataclass(frozen=True, slots=True)
class Entry:
    """A table or figure: the paper's ``value`` and the function that returns ours, both with their unit."""

    source: str
    quantity: str
    value: str
    ours: Callable[[], str]
    difference: str
    is_quick: bool = True


@cache
def figures(part: Part, quick: bool = False) -> Mapping[str, Any]:
    """The figures of a part of a benchmark over all cases, or over its quick ones."""
    return part.figures([part.measure(case, SECONDS) for case in part.cases(quick, 0)])


@cache
def after(name: str, steps: int, **params: Any) -> float:
    """The metric of a training of ``benchmarks.runtime --only papers`` after so many steps, with these parameters."""
    (case,) = [case for case in trainings_part.cases(False, 0) if case.name == name]
    return trainings_part.measure(replace(case, steps=steps, params={**case.params, **params}), SECONDS).after


def peak_ratio(name: str, plan: Plan, other: Plan, params: Any = (), other_params: Any = ()) -> float:
    """Predicted peak of a rank under ``plan`` over that under ``other``, each with more parameters of the workload."""
    feature = FEATURES[name]
    pairs = [(plan, params), (other, other_params)]
    calls = [
        partial(predicted_peak, replace(feature, params={**feature.params, **dict(more)}), plan) for plan, more in pairs
    ]
    first, second = in_forks(calls, SECONDS)
    return first["peak_bytes"] / second["peak_bytes"]


def step_seconds(num_devices: int, batch: int, keep: Callable[[Spread], bool] = lambda spread: True) -> float:
    """Simulated seconds of a step of a GPT of 10 billion parameters on V100s, under the best plan of those kept."""
    kind = gpu("V100-32")
    ways = [way for way in ways_of(Model(48, 4096), [kind], num_devices) if keep(way.spread)]
    plan = search(ways, [Devices(kind.name, num_devices, capacity_bytes(kind))], batch=batch)
    assert plan is not None, "no plan fits"
    return plan.seconds


def accuracies(plan: Plan, steps: int, **params: Any) -> list[float]:
    """Accuracies on held-out digits every five steps of the plan's training by SGD with momentum."""
    feature = replace(DIGITS, plans=(plan,), params=params)
    with tempfile.TemporaryDirectory(prefix="scamp-papers-") as folder:
        ranks = [partial(_accuracies, feature, plan, rank, Path(folder), steps) for rank in range(plan.world_size)]
        return list(in_forks(ranks, SECONDS)[0])


def _accuracies(feature: Feature, plan: Plan, rank: int, folder: Path, steps: int) -> list[float]:
    return [values["accuracy"] for values in reports_of(feature, plan, rank, folder, steps, 5).values]


def _steps_to_90(plan: Plan, **params: Any) -> int:
    reached = [
        place for place, accuracy in enumerate(accuracies(plan, 200, batch=64, lr=0.02, **params)) if accuracy >= 0.9
    ]
    return 5 * (reached[0] + 1)


def _adasum() -> str:
    replicas = {"reduce": "adasum", "adasum_replicas": 4}
    fewer = 100 - 100 * _steps_to_90(Plan(16, dp_replicate=4, adasum=True), **replicas) / _steps_to_90(Plan(64))
    return f"{fewer:.0f} % fewer steps to 90 %"


def _adascale() -> str:
    scaled = {"scale_lr": "adascale", "base_batch": 16}
    small, large = accuracies(Plan(16), 940, lr=0.02), accuracies(Plan(128), 940, batch=128, lr=0.02, **scaled)
    return f"{100 * (large[-1] - small[-1]):+.1f} points with 8 times the batch"


def _vit_millions() -> str:
    sizes = ((12, 768, 12), (24, 1024, 16), (32, 1280, 16))
    with torch.device("meta"):
        models = [
            load_workload("vit_digits", None)({"depth": depth, "width": width, "heads": heads}).build_model()
            for depth, width, heads in sizes
        ]
    return " / ".join(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f}" for model in models) + " million"


def _equal_curve() -> str:
    error = trained.measure(trained.Case(FEATURES["SwinIR"], REPLICAS), SECONDS).error
    return f"losses of 2 replicas are those of one process to {error:.0e}"


def _cosmoflow() -> str:
    return (
        f"error {after('CosmoFlow, 8³', 100) / after('CosmoFlow, 32³', 100):.2f} times smaller with 64 times the voxels"
    )


def _slabs() -> str:
    large = {"box": 64, "side": 64}
    ratio = peak_ratio("CosmoFlow", Plan(1, spatial=8), Plan(1), large, {"side": 32})
    return f"8 times the voxels in 8 slabs, at {ratio:.2f} times the memory of a rank"


@cache
def slab_seconds(num_slabs: int, num_samples: int) -> float:
    """Simulated seconds of a step of CosmoFlow with 256³ voxels a sample, each in so many slabs on V100s."""
    feature, plan = FEATURES["CosmoFlow"], Plan(1, spatial=num_slabs, dp_shard=num_samples)
    params = {"box": 256, "side": 256, "boxes": 5, "width": 16}
    recipe = recipe_of(load_workload(feature.workload, feature.folder)(params))
    step = predicted_step(profile_of({plan.layout: trace(recipe, plan.layout, 1)}), plan, gpu("V100-16"))
    assert step is not None, "nothing is known of the links of a V100"
    return step.seconds


def processor_seconds(plan: Plan) -> float:
    """Processor time of all ranks for a step of CosmoFlow with 32³ voxels a sample, without what precedes the first."""
    feature = replace(FEATURES["CosmoFlow"], params={"side": 32, "width": 16, "boxes": 20, "batch": plan.batch})
    few, many = (_processor_seconds(feature, plan, steps) for steps in (2, 10))
    return (many - few) / 8


def _processor_seconds(feature: Feature, plan: Plan, steps: int) -> float:
    with tempfile.TemporaryDirectory(prefix="scamp-papers-") as folder:
        ranks = [partial(_seconds_of_rank, feature, plan, rank, Path(folder), steps) for rank in range(plan.world_size)]
        return sum(in_forks(ranks, SECONDS))


def _seconds_of_rank(feature: Feature, plan: Plan, rank: int, folder: Path, steps: int) -> float:
    began = time.process_time()
    reports_of(feature, plan, rank, folder, steps, steps)
    return time.process_time() - began


def _strong_scaling() -> str:
    alone = processor_seconds(Plan(4))
    measured = [f"{100 * alone / processor_seconds(Plan(4, spatial=num)):.0f}" for num in (2, 4)]
    simulated = [f"{100 * slab_seconds(1, 1) / num / slab_seconds(num, 1):.0f}" for num in (8, 32)]
    faster = slab_seconds(8, 64) / slab_seconds(32, 64)
    return (
        f"measured {' / '.join(measured)} % of linear in 2 / 4 slabs; simulated {' / '.join(simulated)} % in 8 / 32, "
        f"and 2,048 devices {faster:.2f} times as fast as 512 with 64 samples"
    )


def _weak_scaling() -> str:
    measured = 2 * processor_seconds(Plan(2, spatial=2)) / processor_seconds(Plan(2, spatial=2, dp_shard=2))
    simulated = slab_seconds(8, 1) / slab_seconds(8, 256)
    return f"measured {100 * measured:.0f} % of linear on 4 ranks, simulated {100 * simulated:.0f} % on 2,048"


def _split_sgd() -> str:
    split, plain = {"optimizer": "SplitSGD", "bf16": True}, {"optimizer": "SGD"}
    first, second = (after("DLRM", 160, lr=3.0, **params) for params in (split, plain))
    peak = peak_ratio("DLRM", ONE, ONE, {"width": 2048, **split}, {"width": 2048, **plain})
    return f"AUC {first - second:+.4f} against SGD in fp32, {peak:.2f} of its peak memory"


def _table_updates() -> str:
    return (
        "split SGD {split, dense:.2f} with dense gradients, {split, sparse:.2f} with sparse ones; an update fused with "
        "the backward pass {fused:.2f}".format_map(seconds_ratios(21))
    )


SCAMP = "ScaMP (Anthony et al., CCGrid 2023), abstract"
WHALE = "Whale (Jia et al., USENIX ATC 2022)"
SUPERSCALER = "SuperScaler (Lin et al., 2023)"
SAXENA = "Elastic batches (Saxena et al., MASCOTS 2020), abstract"
OYAMA = "Hybrid-parallel 3D CNNs (Oyama et al., 2021)"
KALAMKAR = "DLRM on CPUs (Kalamkar et al., SC 2020)"
ENTRIES: Mapping[str, Entry] = {
    "scamp-time": Entry(
        SCAMP, "time of a hyperparameter search", "29 % less on 32 V100s",
        lambda: f"{100 - 100 * figures(studies_part)['makespan_mean_ratio']:.0f} % less on 32 V100-16",
        "simulated; 200 GPTs; against 8 GPUs for each trial"),
    "scamp-communication": Entry(
        SCAMP, "share of communication", "28 % → 15 %",
        lambda: "{communication_static_pct:.1f} % → {communication_pct:.1f} %".format_map(figures(studies_part)),
        "simulated; of GPU time, with the same studies"),
    "scamp-swinir": Entry(
        SCAMP, "training of SwinIR is correct", "no number", _equal_curve, "6 steps of a small SwinIR", False),
    "whale-shares": Entry(
        f"{WHALE}, by its authors at besthub.dev", "speed-up by shares of the batch on V100s and P100s", "1.2 to 1.4",
        lambda: f"{figures(search_part, quick=True)['mixed_ratio']:.2f}",
        "computed from fp32 FLOP/s of data sheets; a BERT-large, 8 and 8 GPUs"),
    "whale-unlike": Entry(
        f"{WHALE}, by its authors at besthub.dev", "the same, trained", "1.2 to 1.4",
        lambda: f"{1 / figures(unlike_part)['mixed_trained_ratio']:.2f}",
        "2 ranks, one half as fast; the worse one of shares of the batch and uneven stages of a pipeline", False),
    "whale-scaling": Entry(
        f"{WHALE}, as in sciencestack.ai", "throughput of a model of 10 billion parameters, of linear scaling", "91 %",
        lambda: f"{100 * step_seconds(64, 512) / step_seconds(256, 2048):.1f} %",
        "simulated; a GPT on 64 and on 256 V100-32, half precision, links of the catalogue, which are assumed"),
    "superscaler-plans": Entry(
        f"{SUPERSCALER}, abstract", "speed-up by a larger space of plans", "up to 3.5",
        lambda: f"{step_seconds(32, 256, lambda spread: spread.dp_shard == 1) / step_seconds(32, 256):.2f}",
        "simulated; a GPT on 32 V100-32; FSDP added to data, tensor and pipeline parallelism, not co-shard"),
    "superscaler-co-shard": Entry(
        SUPERSCALER, "peak memory of Swin with co-shard", "a curve",
        lambda: f"{peak_ratio('Swin', Plan(8, co_shard=2), ONE):.2f} of the peak without it",
        "predicted; a small Swin in 2 parts on one rank"),
    "elastic-jobs": Entry(
        SAXENA, "jobs done", "up to 2 times",
        lambda: f"{figures(traces_part)['elastic_jobs_ratio']:.2f} times",
        "simulated; jobs as in Philly's trace at a load of 2; a batch is worth AdaScale's gain, not its samples"),
    "elastic-completion": Entry(
        SAXENA, "shorter mean completion time", "up to 10 times",
        lambda: f"{figures(traces_part)['elastic_completion_ratio']:.2f} times", "simulated; the same jobs"),
    "helios": Entry(
        "Helios (Hu et al., SC 2021), abstract", "shorter mean completion time by durations", "up to 6.5 times",
        lambda: f"{figures(traces_part)['pack_completion_ratio']:.2f} times",
        "simulated; the same jobs; `pack` knows durations, which Helios predicts, and starts jobs wider"),
    "adascale": Entry(
        "AdaScale (Johnson et al., ICML 2020), abstract", "accuracy with a larger batch", "no loss", _adascale,
        "a small network on 8 × 8 digits", False),
    "adasum": Entry(
        "Adasum (Maleki et al., MLSys 2021), abstract", "steps to the same quality", "30 % fewer", _adasum,
        "a small network on digits, SGD, batch 64 of 4 replicas; there LAMB on BERT-large", False),
    "cosmoflow": Entry(
        f"{OYAMA}, abstract", "error with larger samples", "an order of magnitude smaller", _cosmoflow,
        "generated fields, 32³ against 8³ voxels, 100 steps", False),
    "slabs": Entry(
        f"{OYAMA}, the authors at oyamay.github.io", "size of a sample", "64 times", _slabs,
        "predicted; 64³ against 32³ voxels; there on up to 2,048 V100s"),
    "slabs-strong": Entry(
        f"{OYAMA}, abstract", "strong scaling of CosmoFlow", "good, up to 2,048 V100s", _strong_scaling,
        "measured: processor time of ranks, which share 2 cores, 32³ voxels; simulated: 256³, links of the catalogue, "
        "which are assumed; there 512³", False),
    "slabs-weak": Entry(
        f"{OYAMA}, abstract", "weak scaling of CosmoFlow", "good, up to 2,048 V100s", _weak_scaling,
        "the same; as many samples as groups of slabs, which FSDP joins", False),
    "dlrm": Entry(
        "DLRM (Naumov et al., 2019)", "accuracy of predicted clicks", "a curve",
        lambda: f"AUC {after('DLRM', 160):+.3f} against logistic regression", "generated clicks; there Criteo's"),
    "dlrm-tables": Entry(
        f"{KALAMKAR}, abstract", "tables divided over sockets", "no number",
        lambda: f"{peak_ratio('DLRM', DIVIDED, REPLICAS):.2f} of the peak of a replica",
        "predicted; 2 ranks, small tables; its speed-up of kernels is not comparable"),
    "dlrm-split-sgd": Entry(
        KALAMKAR, "accuracy with bf16 split SGD", "as in fp32", _split_sgd,
        "generated clicks, 160 steps; there Criteo's; of memory: predicted, vectors of 2,048 numbers"),
    "dlrm-updates": Entry(
        f"{KALAMKAR}, abstract", "time of a step, of that with torch's SGD", "1/110 on a socket, all of DLRM",
        _table_updates, "processor time of one core, a table of 10⁶ rows in fp32; without AVX-512 and bf16 units"),
    "m6": Entry(
        f"M6 in {WHALE}, abstract", "size of a model with experts", "10 trillion parameters on 512 GPUs",
        lambda: f"{peak_ratio('M6', DIVIDED, REPLICAS):.2f} of the peak of a replica",
        "predicted; a small M6 whose experts and head 2 ranks divide"),
    "vit": Entry(
        "ViT (Dosovitskiy et al., 2021), table 1", "parameters of Base / Large / Huge", "86 / 307 / 632 million",
        _vit_millions, "`vit_digits` of these depths and widths: 8 × 8 pixels, 10 classes"),
    "swinir": Entry(
        "SwinIR (Liang et al., ICCVW 2021), table 2", "PSNR above bicubic interpolation, × 2", "4.76 dB on Set5",
        lambda: f"{after('SwinIR', 100):.2f} dB",
        "there 38.42 dB, bicubic 33.66 in EDSR's table; here a small one, 100 steps, other photographs", False),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only entries that take seconds")
    parser.add_argument("--only", choices=ENTRIES, metavar="ID", help=f"only this entry: {', '.join(ENTRIES)}")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the table between the marks of this page")
    options = parser.parse_args()
    if options.write and (options.quick or options.only):
        parser.error("a page has all entries: leave out --quick and --only")
    if options.write and BEGIN not in options.write.read_text():
        parser.error(f"{options.write} has no marks for the table: put {BEGIN.strip()} and {END.strip()} into it")
    rows, seconds, num_failed = [], 0.0, 0
    for name, entry in ENTRIES.items():
        if options.only not in (None, name) or (options.quick and not entry.is_quick):
            continue
        began = time.monotonic()
        try:
            ours = entry.ours()
        except Exception as error:  # any kind: one entry must not end a run of minutes
            ours, num_failed = f"failed: {type(error).__name__}: {error}", num_failed + 1
        taken = time.monotonic() - began
        seconds += taken
        rows.append([name, entry.source, entry.quantity, entry.value, ours, f"{taken:.0f}", entry.difference])
        print(" | ".join(rows[-1]), flush=True)
    if options.write:
        _write(options.write, rows)
    print(json.dumps({"paper_tables": len(rows) - num_failed, "papers_seconds": round(seconds, 1)}))


def _write(path: Path, rows: list[list[str]]) -> None:
    """Write the table between the marks of the page, with the machine and the date."""
    before, _, rest = path.read_text().partition(BEGIN)
    _, _, behind = rest.partition(END)
    where = f"{setting_words()}, {date.today()}, at {head_commit() or 'no commit'}"
    lines = [f"Measured by `python -m benchmarks.papers --write {path}` on {where}.", ""]
    header = ["entry", "paper", "quantity", "in the paper", "here", "seconds", "what differs"]
    lines += [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)]
    path.write_text(before + BEGIN + "\n".join(["", *lines, ""]) + "\n" + END + behind)


if __name__ == "__main__":
    main()
