"""The JSON of ``scamp plan --json``: all options of a candidate, and the simulated step of the best pipeline."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from placement.exact.plan_words import details, reasons, ways_in_words
from placement.option import Option
from placement.pipelining.simulator import Interval
from placement.refinement import Pipeline
from scamp_service.sizing.comparison import Comparison


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """One line of ``scamp plan --json``. Intervals have (start, end, stage, micro-batch, pass) for each rank."""
    estimate, best, searched = comparison.estimate, comparison.best_pipeline, comparison.best_of_search
    pipeline = best.refinement.pipeline if best is not None else None
    return {
        "params": dict(estimate.params),
        "batch": estimate.batch,
        "device": estimate.kind.name if estimate.kind else None,
        "ranked_by": "FLOPs" if comparison.by_flops else "seconds",
        "times_include_communication": comparison.links_are_known,
        "alternatives": [_option_json(comparison, option) for option in comparison.options],
        "reason": [] if searched is None else list(reasons(searched)),
        "shortage": asdict(comparison.shortage) if comparison.shortage else None,
        "refusal": comparison.refusal,
        "refused": estimate.refused,
        "best_pipeline": _intervals(pipeline) if pipeline is not None else None,
    }


def _option_json(comparison: Comparison, option: Option) -> dict[str, Any]:
    pipeline = option.refinement.pipeline
    words = [ways_in_words(option), *details(option, with_devices=comparison.has_different_devices)]
    return {
        "text": ", ".join(words),
        "searched": _searched_json(option) if option.refinement.is_searched else None,
        "trains_today": option.trained is not None,
        "untrained": option.refinement.untrained or None,
        "plan": option.trained.to_json() if option.trained is not None else None,
        "num_ranks": option.plan.world_size,
        "micro_batch": option.plan.micro_batch,
        "num_micro_batches": option.plan.num_micro_batches,
        "bubble_share": option.bubble_share or 0.0,
        "communication_share": option.communication_share or 0.0,
        "peak_bytes": option.prediction.peak_bytes,
        "reserved_mib": option.prediction.reserved_mib,
        "traced": option.is_traced,
        "fits": option.fits,
        "schedule": pipeline.schedule.name if pipeline else None,
        "blocks": list(pipeline.cut) if pipeline else None,
        "step_flops" if comparison.by_flops else "step_seconds": option.seconds,
    }


def _searched_json(option: Option) -> dict[str, Any]:
    refinement, plan = option.refinement, option.plan
    recompute = None if not plan.recompute else "selective" if plan.selective else "whole"
    samples = blocks = None
    if refinement.shares is not None:
        samples = {kind: list(shares) for kind, shares in refinement.shares.samples.items()}
    else:
        blocks = list(refinement.recomputed)
    return {"devices": refinement.devices, "samples": samples, "recomputed_blocks": blocks, "recompute": recompute}


def _intervals(pipeline: Pipeline) -> dict[str, Any]:
    simulation = pipeline.simulation
    ranks = range(simulation.num_ranks)
    computing = [
        [_interval_json(interval) for interval in simulation.computing if interval.rank == rank] for rank in ranks
    ]
    return {"computing": computing, "memory_bytes": [list(map(list, held)) for held in simulation.memory]}


def _interval_json(interval: Interval) -> list[Any]:
    action = interval.action
    pass_json = [action.stage, action.micro_batch, action.kind] if action else [None, None, "update"]
    return [interval.start_seconds, interval.end_seconds, *pass_json]
