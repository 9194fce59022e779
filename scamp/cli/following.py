"""Follows a study to its end in a terminal, and prints its result."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from scamp.cli.progress import closing_words, leaderboard, live_view, next_line, reasons, without_devices
from scamp.cli.terminal import err, out
from scamp.shown import shown_metric

if TYPE_CHECKING:
    from scamp.client import Client

CHECKING = "checking the study and its files …"


def tail(client: Client, study_id: int, *, as_json: bool = False, between: Callable[[], None] = lambda: None) -> bool:
    """Follow a study to its end and print its leaderboard; returns whether the study succeeded."""
    with live(quiet=as_json or not out.is_terminal) as update:
        while True:
            view = client.study(study_id)
            update(view["summary"], view["spec"], client.cluster())
            if view["finished_at"]:
                break
            between()
            time.sleep(0.3)
    return conclude(view["summary"], list(client.trials(study_id)), view["spec"], as_json, view["reason"])


@contextmanager
def live(quiet: bool) -> Iterator[Callable[[dict[str, Any], dict[str, Any], dict[str, Any]], None]]:
    """Show progress: a block redrawn in place on a terminal, otherwise a line each time a trial's state changes, or why
    nothing can run."""
    if not quiet:
        from rich.live import Live

        with Live(console=out, auto_refresh=False, transient=True) as block:
            yield lambda summary, spec, cluster: block.update(live_view(summary, spec, cluster), refresh=True)
        return
    shown: tuple[dict[str, int], str] = {}, ""

    def line(summary: dict[str, Any], spec: dict[str, Any], cluster: dict[str, Any]) -> None:
        nonlocal shown
        metric = spec["objective"]["metric"]
        news = summary["trials"], without_devices(cluster)
        if news != shown:
            shown = news
            counts, why = news
            best = summary["best"]
            states = ", ".join(f"{count} {state.lower()}" for state, count in counts.items())
            words = [states or "starting", f"best {metric} {shown_metric(metric, best['value'])}" if best else "", why]
            err.print("; ".join(filter(None, words)), markup=False, soft_wrap=True)

    yield line


def conclude(
    summary: dict[str, Any],
    rows: list[dict[str, Any]],
    spec: Mapping[str, Any],
    as_json: bool,
    reason: str,
    scamp: str = "scamp",
) -> bool:
    """Print the result of a study, and what to do next by the command ``scamp``; returns whether it succeeded.

    ``spec`` is the JSON of the study.
    """
    if not as_json:
        out.print(leaderboard(rows, spec))
        out.print(closing_words(summary), markup=False, soft_wrap=True)
        out.print(next_line(summary, scamp), markup=False, soft_wrap=True)
    elif summary["no_success"]:
        for line in reasons(rows):
            err.print(line, soft_wrap=True)
    if reason:
        err.print(f"{word_of(summary)}: {reason}", markup=False, soft_wrap=True)
    if as_json:
        print(json.dumps(summary))
    return summary["state"] == "COMPLETED" and not summary["no_success"]


def warn(warnings: Iterable[str]) -> None:
    """Print warnings of a submission on stderr."""
    for warning in warnings:
        err.print(f"scamp: warning: {warning}", markup=False, soft_wrap=True)


def word_of(summary: Mapping[str, Any]) -> str:
    """The word before the reason for which a study ended, stops or failed."""
    return "ended" if summary["state"] == "COMPLETED" else "scamp"
