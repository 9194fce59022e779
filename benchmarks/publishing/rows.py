"""Published measurements of GPU memory, with the configuration that each needs to be predicted.

The figures below are cited with their source. Hundreds more are in the same repository, which a user may have checked
out: ``read`` takes them from its tables.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from estimators.model import MIB


@dataclass(frozen=True, slots=True)
class Row:
    """One measured run: ``batch`` samples of ``length`` tokens on each of ``num_gpus`` A100s with 80 GB.

    ``tuning``, ``kernels`` and ``loss`` are those of ``models.finetuned``. ``allocated_bytes`` is the peak of torch's
    ``max_memory_allocated``; None where the run ended without one, because it ran out of memory.
    """

    source: str
    model: str
    tuning: str
    kernels: str
    loss: str
    num_gpus: int
    batch: int
    length: int
    autocast: bool
    allocated_bytes: int | None

    @property
    def can_be_predicted(self) -> bool:
        """Whether ``models`` and a plan of ScaMP say what ran.

        They say nothing of experts in 4 bits, and of full fine-tuning by FSDP1 in mixed precision, which sharded fp32
        weights and gathered bf16 copies.
        """
        sharded_in_fp32 = self.autocast and self.tuning == "full" and self.num_gpus > 1
        return not sharded_in_fp32 and (self.tuning, self.model) != ("4bit", "Mixtral-8x7B")

    @property
    def held(self) -> bool:
        """Whether FSDP1 held the inputs of blocks and their gradients: where it did not train the blocks themselves."""
        return self.tuning != "full" and self.num_gpus > 1

    @property
    def plan(self) -> str:
        """Kind of plan, to group rows by."""
        tuning = {"full": "full", "lora": "LoRA", "4bit": "LoRA on 4-bit weights"}[self.tuning]
        kernels = {"none": "", "fused": ", fused kernels", "linear": ", fused last layer"}[self.kernels]
        return f"{tuning}{kernels}, {'one GPU' if self.num_gpus == 1 else f'FSDP {self.num_gpus}'}"

    def __str__(self) -> str:
        autocast = ", autocast" if self.autocast else ""
        return f"{self.model}, {self.plan}, batch {self.batch} × {self.length}{autocast} ({self.source})"


def cited() -> list[Row]:
    """Rows that are cited here: torch's peaks of ``scripts/benchmarks/refs/a100_80gb.csv``.

    Repository foundation-model-stack/fms-acceleration at 876e2ed; Hugging Face's Trainer, gradient checkpointing, flash
    attention, AdamW of foreach kernels. Sequences have 4,096 tokens (santacoder: 2,048), by tokens/s ÷ samples/s.
    """
    return [
        _row("a100_80gb", framework, model, tuning, gpus, batch, peak)
        for framework, model, tuning, gpus, batch, peak in _CITED
    ]


_CITED: tuple[tuple[str, str, str, int, int, int | None], ...] = (
    # framework, model, tuning, GPUs, batch of a GPU, bytes
    ("none", "santacoder-1.1B", "full", 1, 4, 11_267_745_280),
    ("none", "santacoder-1.1B", "full", 1, 8, 15_193_274_880),
    ("none", "Mistral-7B", "full", 1, 4, 72_434_837_504),
    ("none", "Mistral-7B", "full", 1, 8, 72_435_230_720),
    ("none", "Mistral-7B", "full", 2, 2, 36_225_939_968),
    ("none", "Mistral-7B", "full", 2, 4, 36_226_136_576),
    ("none", "Mistral-7B", "lora", 1, 4, 26_704_571_904),
    ("none", "Mistral-7B", "lora", 1, 8, 38_742_912_512),
    ("none", "Mistral-7B", "lora", 2, 2, 15_144_870_400),
    ("none", "Mistral-7B", "lora", 2, 4, 21_959_827_968),
    ("foak-fast-kernels", "Mistral-7B", "full", 1, 4, 72_432_707_584),
    ("foak-fast-kernels", "Mistral-7B", "full", 1, 8, 72_433_100_800),
    ("foak-fast-kernels", "Mistral-7B", "lora", 1, 4, 24_473_332_736),
    ("foak-fast-kernels", "Mistral-7B", "lora", 1, 8, 34_280_434_688),
    ("foak-fast-kernels", "Mistral-7B", "lora", 2, 2, 14_943_543_808),
    ("foak-fast-kernels", "Mistral-7B", "lora", 2, 4, 21_557_174_784),
    ("none", "Llama-2-70B", "full", 1, 4, None),
    ("none", "Llama-2-70B", "full", 2, 2, None),
    ("none", "Llama-2-70B", "lora", 1, 4, None),
    ("none", "Mixtral-8x7B", "full", 1, 4, None),
)

_MODELS = {
    "bigcode/gpt_bigcode-santacoder": "santacoder-1.1B",
    "mistralai/Mistral-7B-v0.1": "Mistral-7B",
    "mistralai/Mixtral-8x7B-Instruct-v0.1": "Mixtral-8x7B",
    "NousResearch/Llama-2-70b-hf": "Llama-2-70B",
    "ibm/PowerLM-3b": "PowerLM-3B",
    "meta-llama/Meta-Llama-3-8B": "Llama-3-8B",
}
_KERNELS = {"none": "none", "foak-fast-kernels": "fused", "foak-fast-kernels-liger": "linear"}
_QUANTIZED = {"accelerated-peft-bnb"}
_TABLES = ("a100_80gb", "a100_80gb_granite", "a100_80gb_liger")


def read(folder: Path) -> list[Row]:
    """Rows of the tables in ``folder`` (``scripts/benchmarks/refs`` of a checkout) that ``models`` can make.

    Raises FileNotFoundError where a table is missing. Left out are weights in GPTQ's format and fused kernels for
    quantized weights, whose memory inside is not defined here.
    """
    return [row for table in _TABLES for row in _rows(table, folder / f"{table}.csv")]


def _rows(table: str, file: Path) -> Iterator[Row]:
    with file.open(newline="") as lines:
        for line in csv.DictReader(lines):
            framework, model = line["framework_config"] or "none", _MODELS.get(line["model_name_or_path"])
            if model is None or framework not in {*_KERNELS, *_QUANTIZED}:
                continue
            tuning = "4bit" if framework in _QUANTIZED else line["peft_method"] or "full"
            tuning = "full" if tuning == "none" else tuning
            peak = line["mem_peak_torch_mem_alloc_in_bytes"]
            gpus, batch = int(float(line["num_gpus"])), int(float(line["per_device_train_batch_size"]))
            yield _row(table, framework, model, tuning, gpus, batch, int(float(peak)) if peak else None)


def _row(table: str, framework: str, model: str, tuning: str, gpus: int, batch: int, peak: int | None) -> Row:
    # transformers 4.48 made a100_80gb.csv, where only Granite and GPT-BigCode computed losses inside the model; 4.45
    # made the others, where all models did. GPT-BigCode's loss stayed in bf16.
    narrow = model == "santacoder-1.1B"
    loss = "narrow" if narrow else "function" if table == "a100_80gb" else "inline"
    autocast = table == "a100_80gb_liger" or framework in _QUANTIZED
    length = 2048 if narrow else 4096
    kernels = _KERNELS.get(framework, "none")
    source = f"{table}.csv, {framework}"
    return Row(source, model, tuning, kernels, loss, gpus, batch, length, autocast, peak)


def mib(num_bytes: int | None) -> str:
    """MiB with thousands separated; out of memory for None."""
    return "out of memory" if num_bytes is None else f"{num_bytes / MIB:,.0f}"
