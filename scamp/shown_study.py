"""A study of the API as notebooks and terminals show it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from html import escape
from importlib import import_module
from typing import Any

from scamp.shown import shown_metric

_COLOURS = {"COMPLETED": "#2e7d32", "PRUNED": "#00838f", "RUNNING": "#1565c0", "FAILED": "#c62828"}


class ShownStudy(dict[str, Any]):
    """A study of the API; a notebook shows it as a bar of its trials and its best value."""

    address: str = ""
    """URL of its page."""

    def _repr_html_(self) -> str:
        parts = "".join(
            f'<span title="{number} {state.lower()}" style="display:inline-block;height:0.8em;'
            f'width:{100 * number / self._wanted:.2f}%;background:{_COLOURS.get(state, "#90a4ae")}"></span>'
            for state, number in self["trials"].items()
        )
        name = f'<a href="{escape(self.address)}">{escape(self["name"])}</a>' if self.address else escape(self["name"])
        return (
            f"<div><b>{name}</b> {escape(self['state_text'])}: {escape(self.words)}"
            f'<div style="max-width:30em;background:#eceff1;line-height:0">{parts}</div></div>'
        )

    @property
    def _wanted(self) -> int:
        num_trials: int = sum(self["trials"].values())
        return max(int(self["spec"].get("budget", {}).get("trials", 0)), num_trials, 1)

    @property
    def words(self) -> str:
        """Its trials by state and its best value, in a line."""
        states = ", ".join(f"{number} {state.lower()}" for state, number in self["trials"].items()) or "no trials yet"
        words = f"{states} of {self._wanted}"
        if self.get("best"):
            metric = self["spec"]["objective"]["metric"]
            words += f"; best {metric} {shown_metric(metric, self['best']['value'])} by trial {self['best']['trial']}"
        return words


def progress_of(first: ShownStudy) -> Callable[[ShownStudy], None]:
    """A function that shows a study again, in its place: in a notebook, or on a terminal."""
    if "ipykernel" in sys.modules:
        handle = import_module("IPython.display").display(first, display_id=True)
        return lambda study: handle.update(study)
    if not sys.stderr.isatty():
        return lambda study: None

    def line(study: ShownStudy) -> None:
        end = "\n" if study["finished_at"] is not None else ""
        print(f"\r\033[2K{study['state_text']}: {study.words}", end=end, file=sys.stderr, flush=True)

    line(first)
    return line
