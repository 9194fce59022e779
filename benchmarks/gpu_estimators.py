"""Measures how good the estimator is on a GPU: the allocator's memory, the smallest capacity, and seconds of a step.

    python -m benchmarks.gpu_estimators --write FILE.json     measure a GPU: takes at most ten minutes, needs no Ray
    python -m benchmarks.gpu_estimators FILE.json             score such a record with the present estimator, anywhere

Prints every case, good or bad, and last the figures as one line of JSON. ``active`` is memory in tensors. ``reserved``
is the memory that the allocator takes for them without a limit. ``least`` is the smallest capacity that two steps run
with; it is found with ``set_per_process_memory_fraction``, starting at 3 % below and 3 % above the predicted capacity.
Times are of models that were not part of the calibration. One GPU cannot show NCCL's memory or the times of gangs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.estimating.case import Case
from benchmarks.estimating.gpu import Observation, ToObserve
from benchmarks.running.process import last_line
from estimators.devices.catalogue import gpu
from estimators.devices.kind import DeviceKind, Memory
from estimators.model import MIB
from estimators.peaks.allocator import replay, smallest_capacity
from estimators.tracing.tracer import trace
from scamp_service.cluster.devices.gpus import known_kind
from scamp_service.sizing.calibration import DEVICE_KIND
from workloads.sandbox.recipe import recipe_of

CASE_SECONDS = 120
TRIED_PERCENT = (97, 103)  # of the predicted capacity
EXPANDABLE = "expandable_segments:True"
HEADER = ("active MiB", "error", "reserved", "error", "least", "error", "97 %", "103 %", "step ms", "error", "case")


@dataclass(frozen=True)
class GpuCase:
    """A case to run on a GPU, with or without the allocator's expandable segments."""

    case: Case
    expandable: bool = False

    def __str__(self) -> str:
        return f"{self.case}{' expandable segments' * self.expandable}"


def cases() -> Iterator[GpuCase]:
    gpt = {"depth": 12, "width": 768, "context": 512}
    yield GpuCase(Case("gpt", 8, gpt))
    yield GpuCase(Case("gpt", 8, gpt), expandable=True)
    yield GpuCase(Case("gpt", 8, gpt, arithmetic="amp"))
    yield GpuCase(Case("gpt", 8, gpt, arithmetic="bf16", optimizer="fused"))
    yield GpuCase(Case("gpt", 32, gpt, recompute=True))
    yield GpuCase(Case("gpt", 2, {"depth": 8, "width": 1536, "context": 512}, optimizer="foreach"))
    yield GpuCase(Case("vit", 32))
    yield GpuCase(Case("vit", 32, {"width": 768, "heads": 12}, arithmetic="amp"))
    yield GpuCase(Case("swin", 16))
    yield GpuCase(Case("swin", 16, {"width": 128}, arithmetic="amp", optimizer="momentum"))
    yield GpuCase(Case("unet", 16))
    yield GpuCase(Case("unet", 16, {"width": 64, "side": 128}, optimizer="sgd"))
    yield GpuCase(Case("dlrm", 8192, {"rows": 400_000}))
    yield GpuCase(Case("hf_gpt2", 16))
    yield GpuCase(Case("hf_gpt2", 16), expandable=True)
    yield GpuCase(Case("hf_bert", 16, arithmetic="amp"))
    yield GpuCase(Case("hf_llama", 16))
    yield GpuCase(Case("hf_t5", 16))


@dataclass(frozen=True, slots=True)
class Predicted:
    """The estimator's figures for a case: bytes over two steps, and seconds of one step."""

    active_bytes: int
    reserved_bytes: int
    smallest_capacity_bytes: int
    step_seconds: float


def predict(gpu_case: GpuCase, kind: DeviceKind) -> Predicted:
    """The estimator's figures for ``wanted`` on ``kind``. Raises ``ValueError`` if there is no log to replay."""
    case = gpu_case.case
    traced = trace(recipe_of(case.workload(), on_cuda=True), case.layout, case.batch)
    if traced.log is None:
        raise ValueError("its passes are not affine in the micro-batch, so there is no log to replay")
    run, streams = traced.log.run(case.batch), traced.log.streams(case.batch)
    unlimited = replay(run, streams=streams, expandable=gpu_case.expandable)
    least = smallest_capacity(run, streams=streams, expandable=gpu_case.expandable)
    seconds = kind.seconds(traced.work.step(case.batch, 1))
    return Predicted(unlimited.active_bytes, unlimited.reserved_bytes, least, seconds)


@dataclass(frozen=True, slots=True)
class Score:
    """The estimator's figures for a case next to those of a real run."""

    predicted: Predicted
    seen: Observation

    def error_pct(self, name: str) -> float:
        """Error of the figure ``name``, in percent of the measured value; negative: predicted too low."""
        predicted, seen = getattr(self.predicted, name), getattr(self.seen, name)
        return float(100 * (predicted / seen - 1))

    def ran_with(self, percent: int) -> bool | None:
        """Whether steps run with ``percent`` of the predicted capacity.

        None if no recorded attempt shows it: the attempts were chosen by the estimator of that day.
        """
        capacity = self.predicted.smallest_capacity_bytes * percent // 100
        if any(ran and tried <= capacity for tried, ran in self.seen.attempts):
            return True
        return False if any(not ran and tried >= capacity for tried, ran in self.seen.attempts) else None

    def row(self) -> list[str]:
        cells = []
        for name in ("active_bytes", "reserved_bytes", "smallest_capacity_bytes"):
            cells += [f"{getattr(self.seen, name) / MIB:.0f}", f"{self.error_pct(name):+.2f} %"]
        cells += [{True: "runs", False: "dies", None: "?"}[self.ran_with(percent)] for percent in TRIED_PERCENT]
        return [*cells, f"{1e3 * self.seen.step_seconds:.1f}", f"{self.error_pct('step_seconds'):+.0f} %"]


def figures(scores: Sequence[Score], memory: Memory | None) -> dict[str, float]:
    """The figures over all scores: medians and 95th percentiles of absolute errors, and decisions about capacity.

    ``gpu_oom_decisions`` counts runs at 97 and 103 % of the predicted capacity; ``gpu_oom_missed`` counts those that
    died at 103 %. ``memory`` is the catalogue's entry for such a device; None: it has none.
    """
    all_ends = [(percent, score.ran_with(percent)) for score in scores for percent in TRIED_PERCENT]
    ends = [(percent, ran) for percent, ran in all_ends if ran is not None]
    values = {
        "gpu_cases": float(len(scores)),
        "gpu_oom_decisions": float(len(ends)),
        "gpu_oom_right_pct": 100 * sum(ran == (percent > 100) for percent, ran in ends) / len(ends) if ends else 0.0,
        "gpu_oom_missed": float(sum(percent > 100 and not ran for percent, ran in ends)),
    }
    if memory is not None:
        context = memory.context.value
        values["gpu_context_max_pct"] = max(abs(100 * (context / score.seen.context_bytes - 1)) for score in scores)
    for key, name in (
        ("active", "active_bytes"),
        ("reserved", "reserved_bytes"),
        ("capacity", "smallest_capacity_bytes"),
        ("step", "step_seconds"),
    ):
        errors = sorted(abs(score.error_pct(name)) for score in scores)
        values[f"gpu_{key}_median_pct"] = median(errors)
        values[f"gpu_{key}_p95_pct"] = errors[min(len(errors) - 1, int(0.95 * len(errors)))]
    return values


def record(quick: bool) -> dict[str, Any]:
    """Raw measurements of all cases on the first GPU of this machine, for ``score``."""
    uuid, product, driver = first_gpu()
    alone = {"CUDA_VISIBLE_DEVICES": uuid}
    print("calibrating …", file=sys.stderr)
    kind = json.loads(
        last_line("-m", "workloads.calibration.measure", "--gpu", uuid, "--name", product, seconds=300, **alone)
    )
    gpu_cases = list(cases())[: 1 if quick else None]
    seen: list[dict[str, Any]] = []
    for gpu_case in gpu_cases:
        print(gpu_case, file=sys.stderr)
        begun: dict[str, Any] = {"case": json.loads(gpu_case.case.to_json()), "expandable": gpu_case.expandable}
        try:
            least = predict(gpu_case, DEVICE_KIND.validate_python(kind)).smallest_capacity_bytes
            order = ToObserve(gpu_case.case.to_json(), uuid, [least * percent // 100 for percent in TRIED_PERCENT])
            variables = {**alone, "PYTORCH_CUDA_ALLOC_CONF": EXPANDABLE if gpu_case.expandable else ""}
            arguments = ("-m", "benchmarks.estimating.gpu", json.dumps(asdict(order)))
            seen.append(begun | {"seen": json.loads(last_line(*arguments, seconds=CASE_SECONDS, **variables))})
        except Exception as error:  # any kind: one case must not end a run of many minutes
            seen.append(begun | {"failure": f"{type(error).__name__}: {error}".splitlines()[0]})
    return {"date": str(date.today()), "product": product, "driver": driver, "kind": kind, "cases": seen}


def first_gpu() -> tuple[str, str, str]:
    """UUID, product name and driver version of the first GPU. Raises ``SystemExit`` if there is none."""
    import pynvml

    try:
        pynvml.nvmlInit()
        chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
        if chosen.startswith("GPU-"):
            handle = pynvml.nvmlDeviceGetHandleByUUID(chosen)
        else:
            handle = pynvml.nvmlDeviceGetHandleByIndex(int(chosen or 0))
        return (
            pynvml.nvmlDeviceGetUUID(handle),
            pynvml.nvmlDeviceGetName(handle),
            pynvml.nvmlSystemGetDriverVersion(),
        )
    except pynvml.NVMLError as error:
        print(f"there is no GPU to measure here ({error}); to score a record of another GPU, name its file")
        sys.exit(0)


def score(data: Mapping[str, Any]) -> dict[str, float]:
    """Print a line for each case of a record, and return the present estimator's figures for it."""
    kind, scores = DEVICE_KIND.validate_python(data["kind"]), []
    print(f"{data['product']}, driver {data['driver']}, {data['date']}: {kind.provenance}")
    print("  ".join(word.rjust(10) for word in HEADER))
    for case_data in data["cases"]:
        gpu_case = GpuCase(Case(**case_data["case"]), case_data["expandable"])
        if "seen" not in case_data:
            print(f"{gpu_case}: {case_data['failure']}")
            continue
        scores.append(Score(predict(gpu_case, kind), Observation.from_json(case_data["seen"])))
        print("  ".join([*(cell.rjust(10) for cell in scores[-1].row()), str(gpu_case)]), flush=True)
    gpu_name = known_kind(data["product"])
    return figures(scores, gpu(gpu_name).memory if gpu_name else None) if scores else {}


def main() -> None:
    """Measure this machine's GPU, or read a record, and print the table and the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path, nargs="?", help="score this record, and measure nothing")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the record of the measurements to this file")
    parser.add_argument("--quick", action="store_true", help="only one case, to check that everything runs")
    options = parser.parse_args()
    data = json.loads(options.record.read_text()) if options.record else record(options.quick)
    if options.write:
        options.write.write_text(json.dumps(data, indent=1) + "\n")
    print(json.dumps(score(data)))


if __name__ == "__main__":
    main()
