"""Every page of the dashboard by axe-core, which finds what people with a screen reader or poor eyes cannot use."""

from __future__ import annotations

import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import Page, sync_playwright

from scamp_service.settings import Settings
from scamp_service.store.store import Store
from tests.api.dashboard.filler import fill
from tests.api.dashboard.serving import serving
from tests.conftest import find_chromium

TITLE = "Accessibility"
HEADER = ("pages", "critical", "serious", "moderate", "minor", "rules that are broken", "case")
ABOUT = """\
[axe-core](https://github.com/dequelabs/axe-core) checks every page of the dashboard in a headless Chromium, with its
default rules (WCAG 2 A and AA, and best practices), in both themes, on a desktop and on a phone, and the dialogs of the
page of a study. The columns count elements that break a rule, by the impact that axe-core gives it. A page with
elements of *critical* or *serious* impact is to be mended."""
AXE = "axe-core@4.14.1"
PATHS = ("/", "/compare", "/cluster", "/team", "/new", "/studies/1", "/studies/1/trials/5", "/studies/99")
DIALOGS = ("#add", "#edit", "#extend", "#stop")
"""Buttons of the page of a study that open dialogs."""
IMPACTS = ("critical", "serious", "moderate", "minor")


@dataclass(frozen=True)
class Case:
    """A theme, and a window as wide as this."""

    theme: Literal["light", "dark"]
    width: int

    def __str__(self) -> str:
        return f"{self.theme}, {self.width} pixels"


@dataclass(frozen=True, slots=True)
class Result:
    """Elements that break a rule by impact, and the rules by page, of so many pages."""

    num_pages: int
    impacts: Mapping[str, int]
    rules: Mapping[str, Sequence[str]]

    def row(self) -> list[str]:
        broken = "; ".join(f"{page}: {', '.join(rules)}" for page, rules in self.rules.items() if rules)
        return [str(self.num_pages), *(str(self.impacts.get(impact, 0)) for impact in IMPACTS), broken or "none"]


def cases(quick: bool, seed: int) -> Sequence[Case]:
    themes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    every = [Case(theme, width) for theme in themes for width in (1280, 390)]
    return [every[0], every[-1]] if quick else every


def figures(results: Sequence[Result]) -> Mapping[str, Any]:
    """Sums over the cases: serious elements are those of serious or critical impact."""
    impacts = sum((Counter(result.impacts) for result in results), start=Counter())
    return {
        "axe_pages": sum(result.num_pages for result in results),
        "axe_serious": impacts["critical"] + impacts["serious"],
        "axe_lesser": impacts["moderate"] + impacts["minor"],
    }


def measure(case: Case, seconds: float) -> Result:
    """Check all pages, and the dialogs of a study."""
    impacts: Counter[str] = Counter()
    rules: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory(prefix="scamp-axe-") as folder:
        settings = Settings(data_dir=Path(folder))
        store = Store(settings.url)
        fill(store)
        with serving(settings) as address, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
            size: Any = {"width": case.width, "height": 900}
            page = browser.new_page(viewport=size, color_scheme=case.theme)
            page.set_default_timeout(1000 * seconds)
            for path in PATHS:
                page.goto(address + path)
                page.wait_for_load_state("networkidle" if path == "/team" else "load")
                page.wait_for_timeout(1500)  # charts and rows come later, and nothing says when
                rules[path] = _checked(page, impacts)
                if path == "/studies/1":
                    for button in DIALOGS:
                        rules[f"{path} {button}"] = _with_dialog(page, button, impacts)
            browser.close()
        store.close()
    return Result(len(rules), dict(impacts), rules)


def _with_dialog(page: Page, button: str, impacts: Counter[str]) -> list[str]:
    page.click(button)
    broken = _checked(page, impacts)
    page.keyboard.press("Escape")
    return broken


def _checked(page: Page, impacts: Counter[str]) -> list[str]:
    """Names of the rules that a page breaks; adds their elements to ``impacts``."""
    page.evaluate(_source())
    violations = page.evaluate("axe.run().then(({violations}) => violations)")
    for violation in violations:
        impacts[violation["impact"]] += len(violation["nodes"])
    return [violation["id"] for violation in violations]


@cache
def _source() -> str:
    """The code of axe-core, which npm fetches into a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="scamp-axe-core-") as folder:
        subprocess.run(["npm", "install", "--no-save", "--prefix", folder, AXE], check=True, capture_output=True)
        return Path(folder, "node_modules", "axe-core", "axe.min.js").read_text()
