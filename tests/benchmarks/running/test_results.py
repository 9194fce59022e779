"""Kept results are found again on the same machine only, and the page has every case."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.running.results import Finding, Results, Section, head_commit, page, setting

GOOD = Finding("truth", "gpt batch=8", ["899", "−0.05 %"], {"predicted": 899})
BAD = Finding("truth", "unet batch=1", failure="TimeoutError: took more than 600 s")


def test_a_later_run_finds_what_an_earlier_one_has_kept(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    for finding in (GOOD, BAD):
        Results(file).add(finding)
    later = Results(file)
    assert later.of("truth", "gpt batch=8") == GOOD
    assert later.of("truth", "unet batch=1") == BAD
    assert later.of("oom", "gpt batch=8") is None
    mended = Finding("truth", "unet batch=1", ["1", "+0.1 %"], {"predicted": 1})
    later.add(mended)
    assert Results(file).of("truth", "unet batch=1") == mended


def test_figures_of_another_machine_are_not_mixed_with_those_of_this_one(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    file.write_text(json.dumps({**setting(), "torch": "1.0"}) + "\n")
    with pytest.raises(ValueError, match="name another file"):
        Results(file)


def test_the_page_has_every_case_and_says_what_was_not_run() -> None:
    section = Section("Peaks", "Of real steps.", ("MiB", "error", "case"), 36, [GOOD, BAD], {"cpu_median_pct": 0.05})
    text = page("Estimates", "the command", [section, Section("Fits?", "Caps.", ("case",), 34, [], {})])
    assert "| 899 | −0.05 % | gpt batch=8 |" in text
    assert "- unet batch=1: TimeoutError: took more than 600 s" in text
    assert f"1 of 36 cases have been run, {GOOD.day}{f', at {head_commit()}' if head_commit() else ''}." in text
    assert "0 of 34 cases have been run." in text
    assert "`cpu_median_pct`: 0.05" in text
    assert setting()["torch"] in text
