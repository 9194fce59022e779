"""Compares predicted peaks with those that others measured on GPUs, and whether a run fitted.

The measured number is the peak of torch's allocator. It contains cuBLAS' workspaces, which torch takes from the same
allocator, so the catalogue's figure for them is added to the prediction. ``fits`` compares the smallest capacity that a
replay of the allocator needs, with the memory outside of it, with the device's whole memory.
"""

from __future__ import annotations

import random
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median, quantiles

from benchmarks.publishing.rows import Row, cited, mib, read
from benchmarks.running.results import Finding
from estimators.devices.catalogue import gpu
from estimators.devices.kind import Memory
from estimators.model import Plan, Prediction
from scamp_service.sizing.candidates import candidates_of
from scamp_service.sizing.estimate import Estimator
from scamp_service.sizing.tracing.options import Tracing

TITLE = "Peaks and out-of-memory of fine-tuning on A100s with 80 GB"
HEADER = ("predicted MiB", "published MiB", "error", "fits", "seen", "run")
ABOUT = """\
Published is torch's peak of allocated memory, of fine-tuning by Hugging Face's Trainer with gradient checkpointing
(foundation-model-stack/fms-acceleration, `scripts/benchmarks/refs`); predicted are the tensors of a trace and cuBLAS'
workspaces. What the allocator reserves was not compared. A run without a peak counts as out of memory. `fits` is wrong
where the smallest device by the replay of the allocator disagrees with the run.

Rows are `unseen` if a seed drew them from those in mixed precision; at most a third of all is. They were not used to
find definitions of models and causes of errors. Left out are weights in GPTQ's format, fused kernels on quantized
weights, experts in 4 bits, models that `benchmarks/publishing/models.py` does not define, and full fine-tuning in mixed
precision on several GPUs: FSDP1 sharded fp32 weights and gathered bf16 copies of them, which no plan of ScaMP does.
Predicted with fp32 copies, eight such runs of Llama-3-8B came out 2 to 54 % too high, and four of them would not have
fitted. Full fine-tuning otherwise mostly peaks in the optimizer's step, at ten bytes a parameter, whatever the batch:
such rows are easy.

The published runs of several GPUs used FSDP1, predicted is FSDP2. FSDP1 held the inputs of frozen blocks and their
gradients until the backward pass ended (`_register_post_backward_reshard_only_hook` in
`torch/distributed/fsdp/_runtime_utils.py`); the models hold them too, which FSDP2 does not: without this, LoRA on
several GPUs would be predicted up to 21 % lower. Santacoder's larger batches take about one copy of the logits, with
the keys and values of all layers, more than predicted; the cause is not known."""
OPTIONS = {"tables": "folder scripts/benchmarks/refs of a checkout of foundation-model-stack/fms-acceleration"}

_MODELS = f"{Path(__file__).with_name('models.py')}:finetuned"
_TRACES = Path(tempfile.gettempdir()) / "scamp-published"


@dataclass(frozen=True, slots=True)
class Case:
    """A published row, and whether it was seen while errors were searched."""

    row: Row
    seen: bool

    def __str__(self) -> str:
        return str(self.row)


@dataclass(frozen=True, slots=True)
class Result:
    """``predicted_bytes`` is the peak of tensors with cuBLAS' workspaces; ``published_bytes`` is None where the run was
    out of memory. ``needed_bytes`` of a device with ``capacity_bytes`` are predicted to be needed."""

    plan: str
    seen: bool
    predicted_bytes: int
    needed_bytes: int
    capacity_bytes: int
    published_bytes: int | None

    @property
    def error_pct(self) -> float | None:
        """Signed error in percent; positive when too much was predicted."""
        if self.published_bytes is None:
            return None
        return 100.0 * (self.predicted_bytes - self.published_bytes) / self.published_bytes

    @property
    def fits_right(self) -> bool:
        """Whether the run fitted as predicted."""
        return (self.needed_bytes <= self.capacity_bytes) == (self.published_bytes is not None)

    def row(self) -> list[str]:
        error = "" if self.error_pct is None else f"{self.error_pct:+.1f} %"
        fits = "right" if self.fits_right else "wrong"
        words = ("seen" if self.seen else "unseen",)
        return [mib(self.predicted_bytes), mib(self.published_bytes), error, fits, *words]


def cases(quick: bool, seed: int, tables: Path | None = None) -> Sequence[Case]:
    """Cited rows, and those of ``tables``.

    ``seed`` decides which are unseen, a third of all, among the rows in mixed precision: the definitions in ``models``
    were found with others. Rows that cannot be predicted are left out afterwards.
    """
    rows = {str(row): row for row in [*(read(tables) if tables else []), *cited()]}
    unknown = sorted(name for name, row in rows.items() if row.autocast)
    unseen = set(random.Random(seed).sample(unknown, min(len(unknown), len(rows) // 3)))
    predictable = [Case(row, name not in unseen) for name, row in rows.items() if row.can_be_predicted]
    return [case for case in predictable if "santacoder" in str(case)][:1] if quick else predictable


def measure(case: Case, seconds: float) -> Result:
    """The row's prediction; a trace has ``seconds`` of processor time."""
    row, memory = case.row, _memory()
    plan = Plan(micro_batch=row.batch, recompute=True, dp_shard=row.num_gpus)
    prediction = _predicted(row, plan, int(seconds))
    return Result(
        row.plan,
        case.seen,
        prediction.predicted_bytes + int(memory.workspaces.value),
        prediction.needed_bytes + memory.outside_bytes(row.num_gpus),
        int(memory.total.value),
        row.allocated_bytes,
    )


def figures(results: Sequence[Result]) -> Mapping[str, float | Mapping[str, float]]:
    errors = [abs(result.error_pct) for result in results if result.error_pct is not None]
    unseen = [abs(result.error_pct) for result in results if result.error_pct is not None and not result.seen]
    kinds = defaultdict(list)
    for result in results:
        if result.error_pct is not None:
            kinds[result.plan].append(abs(result.error_pct))
    values: dict[str, float | Mapping[str, float]] = {"published_rows": len(results)}
    if errors:
        values |= {
            "published_median_pct": round(median(errors), 2),
            "published_p95_pct": round(percentile(errors, 95), 2),
            "published_worst_pct": round(max(errors), 2),
            "published_median_pct_of": {kind: round(median(errors), 2) for kind, errors in sorted(kinds.items())},
        }
    if unseen:
        values |= {
            "published_unseen_median_pct": round(median(unseen), 2),
            "published_unseen_p95_pct": round(percentile(unseen, 95), 2),
        }
    return values | {"fits_right_pct": round(100.0 * sum(result.fits_right for result in results) / len(results), 1)}


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    """Findings with the worst first: wrong answers about fitting, then the largest errors."""

    def badness(finding: Finding) -> tuple[bool, float]:
        if finding.failure:
            return True, 0.0
        result = Result(**finding.values)
        return not result.fits_right, abs(result.error_pct or 0.0)

    return sorted(findings, key=badness, reverse=True)


def percentile(values: Sequence[float], percent: int) -> float:
    """The value that ``percent`` of the values do not exceed, between two of them by interpolation."""
    return quantiles(values, n=100, method="inclusive")[percent - 1] if len(values) > 1 else values[0]


def _memory() -> Memory:
    memory = gpu("A100-80").memory
    assert memory is not None
    return memory


def _predicted(row: Row, plan: Plan, seconds: int) -> Prediction:
    params = {
        "model": row.model,
        "tuning": row.tuning,
        "kernels": row.kernels,
        "loss": row.loss,
        "length": row.length,
        "autocast": row.autocast,
        "held": row.held,
    }
    return _estimator(seconds).predict(params, plan)[0]


@cache
def _estimator(seconds: int) -> Estimator:
    code = candidates_of(_MODELS, {})
    return Estimator(code.workload, code.code, Tracing(_TRACES, seconds=seconds), gpu("A100-80"))
