"""Published rows are read and scored without a trace."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.publishing.memory_part import Result, cases, figures, in_order, percentile
from benchmarks.publishing.rows import read
from benchmarks.running.results import Finding

TABLE = """\
framework_config,mem_peak_torch_mem_alloc_in_bytes,model_name_or_path,num_gpus,peft_method,per_device_train_batch_size
none,100.0,mistralai/Mistral-7B-v0.1,1,,4
foak-fast-kernels-liger,,meta-llama/Meta-Llama-3-8B,2.0,lora,8
accelerated-peft-bnb,300,ibm/PowerLM-3b,1,lora,4
accelerated-peft-autogptq,300,TheBloke/Mistral-7B-v0.1-GPTQ,1,lora,4
none,300,someone/else,1,lora,4
"""


def test_tables_of_a_checkout_are_read_and_runs_that_cannot_be_made_are_left_out(tmp_path: Path) -> None:
    for name in ("a100_80gb", "a100_80gb_granite", "a100_80gb_liger"):
        (tmp_path / f"{name}.csv").write_text(TABLE)
    rows = read(tmp_path)[3:6]
    assert [(row.model, row.tuning, row.kernels, row.loss, row.num_gpus, row.allocated_bytes) for row in rows] == [
        ("Mistral-7B", "full", "none", "inline", 1, 100),
        ("Llama-3-8B", "lora", "linear", "inline", 2, None),
        ("PowerLM-3B", "4bit", "none", "inline", 1, 300),
    ]
    assert [row.autocast for row in rows] == [False, False, True]


def test_what_fsdp1_trained_wholly_in_mixed_precision_is_no_case_and_lora_is(tmp_path: Path) -> None:
    lines = [f"foak-fast-kernels-liger,100,meta-llama/Meta-Llama-3-8B,2,{tuning},8" for tuning in ("", "lora")]
    for name in ("a100_80gb", "a100_80gb_granite", "a100_80gb_liger"):
        (tmp_path / f"{name}.csv").write_text("\n".join([TABLE.splitlines()[0], *lines]))
    (row,) = {
        case.row for case in cases(quick=False, seed=0, tables=tmp_path) if case.row.source.startswith("a100_80gb_l")
    }
    assert (row.tuning, row.held) == ("lora", True)


def test_rows_in_mixed_precision_are_unseen_as_long_as_they_are_a_third(tmp_path: Path) -> None:
    for name in ("a100_80gb", "a100_80gb_granite", "a100_80gb_liger"):
        (tmp_path / f"{name}.csv").write_text(TABLE)
    drawn = cases(quick=False, seed=0, tables=tmp_path)
    unseen = [case for case in drawn if not case.seen]
    assert drawn == cases(quick=False, seed=0, tables=tmp_path)
    assert 0 < len(unseen) <= len(drawn) // 3 and all(case.row.autocast for case in unseen)
    assert all(case.seen for case in cases(quick=False, seed=0)) and len(cases(quick=True, seed=0)) == 1


def test_figures_count_errors_of_runs_with_a_peak_and_whether_all_fitted() -> None:
    ran = [
        Result("LoRA, one GPU", seen, 90 + size, 90, 100, 100) for size, seen in ((0, True), (20, False), (14, True))
    ]
    out_of_memory = [Result("full, one GPU", True, 80, needed, 100, None) for needed in (101, 99)]
    values = figures([*ran, *out_of_memory])
    assert values["published_rows"] == 5
    assert (
        values["published_median_pct"] == values["published_worst_pct"] == values["published_unseen_median_pct"] == 10
    )
    assert values["fits_right_pct"] == 80
    assert values["published_median_pct_of"] == {"LoRA, one GPU": 10}


def test_a_page_begins_with_the_worst_rows() -> None:
    results = {
        "good": Result("full, one GPU", True, 101, 90, 100, 100),
        "too low": Result("full, one GPU", True, 80, 90, 100, 100),
        "wrong": Result("full, one GPU", True, 101, 101, 100, 100),
    }
    findings = [Finding("memory", name, result.row(), asdict(result)) for name, result in results.items()]
    assert [finding.case for finding in in_order(findings)] == ["wrong", "too low", "good"]


def test_percentiles_lie_between_values() -> None:
    assert percentile([1.0], 95) == 1.0
    assert percentile([float(value) for value in range(101)], 95) == pytest.approx(95.0)
