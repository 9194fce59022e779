"""The tables of the papers: an entry runs by its name, and a page keeps what stands around the table."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import papers


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["papers", *arguments])
    papers.main()


def test_a_chosen_entry_is_printed_beside_the_papers_value(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "--only", "vit")
    row, figures = capsys.readouterr().out.splitlines()
    assert "86 / 307 / 632 million | 85 / 302 / 630 million" in row
    assert json.loads(figures)["paper_tables"] == 1


def test_an_entry_that_fails_says_why_and_does_not_count(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> str:
        raise ValueError("no photographs")

    monkeypatch.setattr(papers, "ENTRIES", {"a": papers.Entry("paper", "quantity", "1", fails, "nothing")})
    run(monkeypatch)
    row, figures = capsys.readouterr().out.splitlines()
    assert "failed: ValueError: no photographs" in row
    assert json.loads(figures)["paper_tables"] == 0


def test_only_what_is_between_the_marks_of_a_page_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(papers, "ENTRIES", {"a": papers.Entry("paper", "quantity", "1 s", lambda: "2 s", "nothing")})
    page = tmp_path / "page.md"
    page.write_text(f"before\n{papers.BEGIN}old\n{papers.END}behind\n")
    run(monkeypatch, "--write", str(page))
    text = page.read_text()
    assert text.startswith(f"before\n{papers.BEGIN}")
    assert text.endswith(f"{papers.END}behind\n")
    assert "old" not in text
    assert "| a | paper | quantity | 1 s | 2 s | 0 | nothing |" in text


def test_a_page_without_marks_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("of another benchmark\n")
    with pytest.raises(SystemExit):
        run(monkeypatch, "--write", str(page))
    assert "marks" in capsys.readouterr().err
    assert page.read_text() == "of another benchmark\n"
