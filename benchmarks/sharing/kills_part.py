"""Kills and freezes the processes of a service whose trials share processes, and counts what was lost or done twice."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.trusting.kills_part import HEADER, Case, Result, measure, notes

__all__ = ["ABOUT", "HEADER", "TITLE", "Case", "Result", "cases", "figures", "measure", "notes"]

TITLE = "Kills"
ABOUT = """\
Processes are killed as in the part *live kills* of `benchmarks.trust`, but while studies of eight adapters run, up to
four of them in one process. SIGKILL, or SIGSTOP for 0.5 to 15 s, hits a process of any kind, also that of a pack.
*Lost* are trials that do not complete, *twice* those that complete or report a step twice, *missing* those that lack an
evaluation."""


def cases(quick: bool, seed: int) -> Sequence[Case]:
    """None in a quick run: even a few kills take longer than that."""
    return [] if quick else [Case("SQLite", seed, 30, packs=True)]


def figures(results: Sequence[Result]) -> dict[str, float]:
    if not results:
        return {}
    return {
        "pack_kills": sum(len(result.seconds) for result in results),
        "pack_kills_lost": sum(result.lost + result.missing_metrics for result in results),
        "pack_kills_doubled": sum(result.duplicated for result in results),
        "pack_kills_largest_pack": max(result.largest_pack for result in results),
    }
