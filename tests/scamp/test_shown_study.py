"""Notebooks show a study with a bar, and redraw it while somebody waits."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from scamp.shown_study import ShownStudy, progress_of


def study(**fields: Any) -> ShownStudy:
    spec = {"budget": {"trials": 4}, "objective": {"metric": "accuracy"}}
    best = {"trial": 2, "value": 0.91}
    usual = {"name": "a <b>", "state_text": "Running", "spec": spec, "best": best, "finished_at": None}
    return ShownStudy(**{**usual, "trials": {"COMPLETED": 1, "RUNNING": 2}, **fields})


def test_a_notebook_shows_a_bar_the_best_value_and_no_markup_of_a_name() -> None:
    shown = study()
    shown.address = "http://127.0.0.1:8100/studies/1"
    page = shown._repr_html_()
    assert "a &lt;b&gt;" in page and "a <b>" not in page and shown.address in page
    assert "width:25.00%" in page and "width:50.00%" in page
    assert "1 completed, 2 running of 4; best accuracy 0.9100 by trial 2" in page
    assert shown["name"] == "a <b>" and "no trials yet of 4" in study(trials={}, best=None).words


def test_a_notebook_redraws_it_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    updates: list[Any] = []

    class Handle:
        def update(self, value: Any) -> None:
            updates.append(value)

    def display(value: Any, display_id: bool) -> Handle:
        updates.append(value)
        return Handle()

    module = ModuleType("IPython.display")
    module.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    first, second = study(), study(finished_at=1.0)
    progress_of(first)(second)
    assert updates == [first, second]


def test_a_terminal_has_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    progress_of(study())(study())
    assert capsys.readouterr().err == "", "it is no terminal"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    progress_of(study())(study(finished_at=1.0))
    shown = capsys.readouterr().err
    assert shown.count("\r") == 2 and shown.count("\n") == 1 and "best accuracy 0.9100" in shown
