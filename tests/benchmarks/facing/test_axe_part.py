"""Elements that break a rule of axe-core are counted by their impact over all cases."""

from __future__ import annotations

from benchmarks.facing.axe_part import Result, cases, figures


def test_serious_and_critical_elements_are_counted_together_and_apart_from_others() -> None:
    results = [
        Result(2, {"serious": 3, "minor": 1}, {"/": ["color-contrast"], "/team": []}),
        Result(2, {"critical": 1, "moderate": 5}, {"/": ["image-alt"], "/team": []}),
    ]
    assert figures(results) == {"axe_pages": 4, "axe_serious": 4, "axe_lesser": 6}
    assert results[0].row() == ["2", "0", "3", "0", "1", "/: color-contrast"]


def test_both_themes_and_widths_are_checked() -> None:
    assert {str(case) for case in cases(False, 0)} == {
        f"{theme}, {width} pixels" for theme in ("light", "dark") for width in (1280, 390)
    }
    assert {(case.theme, case.width) for case in cases(True, 0)} == {("light", 1280), ("dark", 390)}
