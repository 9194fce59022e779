"""Prints a comparison of plans as a table in a terminal, with the best pipeline drawn below it."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from rich.table import Table

from placement.exact.plan_words import details, in_full, reasons, ways_in_words
from placement.option import Option
from placement.pricing.categories import categories_in_words
from scamp_service.cli.tables.estimate import short_seconds
from scamp_service.cli.tables.pipeline_drawing import draw, legend
from scamp_service.sizing.comparison import Comparison

MOST_ROWS = 24


def as_table(comparison: Comparison) -> Table:
    """One row for each of the best options, the best first; those that do not fit come last.

    A plan of the search has further lines for what it recomputes and, on different devices, for samples and kinds.
    """
    unit = "GFLOP" if comparison.by_flops else "step"
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 0, 0, 2))
    table.add_column("plan")
    for heading in ("ranks", "batch", unit, "bubble", "comm", "MiB"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("today", no_wrap=True)
    for option in comparison.options[:MOST_ROWS]:
        table.add_row(
            "\n  ".join([ways_in_words(option), *details(option, with_devices=comparison.has_different_devices)]),
            str(option.plan.world_size),
            _batch(option),
            time_of(comparison, option),
            _bubble(option),
            _communication(comparison, option),
            _mib(option),
            _today(option),
            style=None if option.fits else "dim",
        )
    return table


def _today(option: Option) -> str:
    """Whether ranks can train the plan on these devices, or why not."""
    if not option.fits:
        return "does not fit"
    return "trains" if option.trained is not None else f"no: {option.refinement.untrained}"


def _batch(option: Option) -> str:
    """Micro-batches × samples of each on one rank; the most on each kind of devices, if shares are uneven."""
    plan, shares = option.plan, option.refinement.shares
    accumulated = f"{plan.num_micro_batches}×" if plan.num_micro_batches > 1 else ""
    if shares is not None:
        return accumulated + "/".join(str(max(taken)) for taken in shares.samples.values())
    return f"{accumulated}{plan.micro_batch}"


def _bubble(option: Option) -> str:
    has_share = option.plan.pp > 1 and option.seconds is not None
    return f"{option.bubble_share or 0.0:.0%}" if has_share else ""


def _communication(comparison: Comparison, option: Option) -> str:
    is_known = comparison.links_are_known and option.plan.world_size > 1 and option.seconds is not None
    return f"{option.communication_share or 0.0:.0%}" if is_known else ""


def time_of(comparison: Comparison, option: Option) -> str:
    """Time of a step; ``≥`` where communication takes more, which is not known."""
    if option.seconds is None:
        return ""
    if comparison.by_flops:
        return f"{option.seconds / 1e9:.3g}"
    return f"{'' if comparison.links_are_known or option.plan.world_size == 1 else '≥'}{short_seconds(option.seconds)}"


def reason(comparison: Comparison) -> Iterator[str]:
    """Yield lines on why the best plan of the search is the best, none longer than 79 characters; none without one."""
    best = comparison.best_of_search
    if best is None:
        return
    yield from wrap(f"fastest plan of the search: {in_full(best)}", 79, subsequent_indent="  ")
    for line in reasons(best):
        yield from wrap(f"- {line}", 79, subsequent_indent="  ")


def shortage_lines(comparison: Comparison) -> Iterator[str]:
    """Yield lines on how much memory is missing, by category, if no plan fits; none if one does."""
    missing = comparison.shortage
    if missing is None:
        return
    mark = "" if missing.is_traced else "about "
    words = f"needs {mark}{missing.needed_mib} MiB of one device, {missing.needed_mib - missing.offered_mib} more than"
    yield from wrap(f"no plan fits. The closest one, {missing.text}, {words} the {missing.offered_mib} offered:", 79)
    yield from wrap(f"- {categories_in_words(missing.num_bytes)}", 79, subsequent_indent="  ")


def picture(comparison: Comparison) -> Iterator[str]:
    """Yield the lines that draw the best pipeline, none longer than 79 characters; none without a pipeline."""
    best = comparison.best_pipeline
    if best is None or (pipeline := best.refinement.pipeline) is None:
        return
    cut = "-".join(map(str, pipeline.cut))
    today = "ranks can train it" if best.trained is not None else "planned only"
    verdict = today if best.fits else "does not fit"
    yield f"{ways_in_words(best)}: {best.plan.num_micro_batches} micro-batches of {best.plan.micro_batch}; {verdict}"
    yield f"blocks of each stage: {cut if len(cut) < 56 else f'{cut[:52]} …'}"
    yield ""
    yield from draw(pipeline, lambda amount: _time(comparison, amount))
    yield ""
    yield from legend(pipeline)


def footnotes(comparison: Comparison) -> Iterator[str]:
    """Lines on what the figures take for granted, none longer than 79 characters, except hints and a refusal."""
    kind = comparison.estimate.kind
    more = len(comparison.options) - MOST_ROWS
    if more > 0:
        yield f"{more} more plans in --json"
    if comparison.by_flops:
        yield "the speed of these devices is not known, so FLOPs rank the plans, not seconds:"
        yield "        run `scamp calibrate` to measure this machine, or name a --device"
        yield "GFLOP   length of a step in FLOPs of one rank, idle time included; they do not"
        yield "        show what communication and small batches cost"
    elif not comparison.links_are_known:
        yield "≥       computation and bubbles alone: what communication and shared cores add"
        yield "        is not known, so plans of several ranks look faster than they are"
    else:
        yield "bubble  share of the step in which ranks wait for others to compute"
        yield "comm    share of the step in which ranks wait for messages and collectives"
    if kind is not None and comparison.estimate.on_gpu and not kind.verified:
        yield "step    unverified: datasheet peaks times assumed shares (docs/gpus.md)"
    yield "MiB     reservation of the rank that needs most: traced, or if ~ added up from"
    yield "        the costs of units (`scamp estimate --units`)"
    yield "today   trains: ranks can run it (--plan of `scamp estimate` has its memory by"
    yield "        stage); no: they cannot run this order of passes (schedule) or stages on"
    yield "        different devices, or it cannot be traced (trace)"
    if any("selective" in in_full(option) for option in comparison.options):
        yield "selective: recompute of all but products of matrices and attention"
    if kind is not None and any(len(option.refinement.devices) > 1 for option in comparison.searched):
        yield f"on      devices of the plan; a row without them is for those of {kind.name} alone"
    hints = comparison.estimate.profile.divisions.constraints.words
    if comparison.best_pipeline is None and not hints:
        yield "no pipeline: it needs two devices, two blocks that run one after another, and"
        yield "        at least one sample for each stage"
    if comparison.best_pipeline is not None:
        yield "PP      gradients of inputs and of weights are assumed to take the same time"
    yield from comparison.estimate.profile.traits.words
    if comparison.estimate.refused:
        yield f"no FSDP plans: {comparison.estimate.refused}"
    if not comparison.options:
        yield f"no plan: {comparison.estimate.reason}"
    elif hints:
        yield f"hints   {hints}"
    if comparison.refusal:
        yield f"no pipeline could be traced, so all are only planned: {comparison.refusal}"


def _mib(option: Option) -> str:
    mark = "≥" if option.is_bound else "" if option.is_traced else "~"
    return f"{mark}{option.prediction.reserved_mib}"


def _time(comparison: Comparison, amount: float) -> str:
    return f"{amount / 1e9:.3g} GFLOP" if comparison.by_flops else short_seconds(amount)
