"""Prints a screening as a table in a terminal: how many candidates fit on how many ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median

from rich.table import Table

from estimators.devices.kind import DeviceKind
from placement.planning.answers import ChosenPlan
from scamp_service.sizing.screen.screened import Screened, Screening


def as_table(screening: Screening) -> Table:
    """One row for each number of ranks that was chosen, with the medians of the candidates in it."""
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ["ranks", "candidates", "recompute", "accumulate", "micro-batch", "reserve MiB"]:
        table.add_column(heading, justify="right", no_wrap=True)
    chosen = [candidate.choice for candidate in screening.candidates if isinstance(candidate.choice, ChosenPlan)]
    for ranks in sorted({choice.plan.world_size for choice in chosen}):
        table.add_row(str(ranks), *_cells([choice for choice in chosen if choice.plan.world_size == ranks]))
    infeasible = sum(
        not candidate.refused and not isinstance(candidate.choice, ChosenPlan) for candidate in screening.candidates
    )
    if infeasible:
        table.add_row("none", str(infeasible), style="dim")
    return table


def _cells(choices: Sequence[ChosenPlan]) -> list[str]:
    plans = [choice.plan for choice in choices]
    return [
        str(len(choices)),
        str(sum(plan.recompute for plan in plans)),
        str(sum(plan.num_micro_batches > 1 for plan in plans)),
        f"{median(plan.micro_batch for plan in plans):g}",
        f"{median(choice.prediction.reserved_mib for choice in choices):g}",
    ]


def footnotes(screening: Screening, kind: DeviceKind | None) -> Iterator[str]:
    """One line each on how peaks were predicted, which candidates were refused, and what is unverified."""
    by_formula = sum(candidate.known_by == "formulas" for candidate in screening.candidates)
    if by_formula:
        examples = f"{screening.num_examples} traced examples" if screening.num_examples else "examples traced earlier"
        checked = f"; {screening.num_checked} full traces agree to the byte" if screening.num_checked else ""
        yield f"{by_formula} candidates predicted by formulas fitted to {examples}{checked}"
    for why, num in sorted(Counter(candidate.traced for candidate in screening.candidates if candidate.traced).items()):
        yield f"{num} traced one by one: {why}"
    if num_dearer := sum(candidate.may_be_cheaper for candidate in screening.candidates):
        yield (
            f"{num_dearer} may have a cheaper plan, or the only one that fits, among pipelines, ZeRO-1 and layouts "
            "that few candidates need: their memory is known only roughly (`scamp estimate` traces them)"
        )
    refused = [candidate for candidate in screening.candidates if candidate.refused]
    if refused:
        yield f"{len(refused)} refused by the workload, the first with: {_first_line(refused[0])}"
    if kind is not None and kind.memory is not None:
        yield (
            f"unverified: ScaMP has not compared these peaks with measurements on a {kind.name}. They count tensors; "
            "the margin covers what PyTorch's allocator needs beyond them, and `scamp estimate` replays it"
        )


def _first_line(screened: Screened) -> str:
    return screened.refused.splitlines()[0]
