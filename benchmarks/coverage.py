"""Measures what the estimator covers. Prints every case, refused ones too, and last the figures as one line of JSON.

It asks for an estimate of families of ``transformers`` that nobody chose for ScaMP, and compares predicted peaks of a
part of them, and of models of torch alone, with what real steps allocate, in single ranks and in gangs, and predicted
peaks of evaluations with real ones, also of losses that choose by masks. It runs the largest micro-batches that the
estimator says fit, under an enforced limit. It measures after how much processor time the first answer comes. It
compares losses of ``TransformersWorkload`` with those of the library. It also makes mistakes, and counts the clear
answers.

Use --only, --cases and --results to run a part of the cases and to continue later.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.covering import mistakes
from benchmarks.covering.parts import (
    evaluations_part,
    families_part,
    first_answers_part,
    gangs_part,
    heads_part,
    largest_part,
    masks_part,
    peaks_part,
    small_part,
    uneven_part,
)
from benchmarks.running.part import Part
from benchmarks.running.runner import run_parts

COMMAND = "python -m benchmarks.coverage --results FILE --write PAGE"
PARTS: Mapping[str, Part] = {
    "families": families_part,
    "peaks": peaks_part,
    "gangs": gangs_part,
    "uneven": uneven_part,
    "small": small_part,
    "evaluations": evaluations_part,
    "masks": masks_part,
    "heads": heads_part,
    "largest": largest_part,
    "first": first_answers_part,
    "mistakes": mistakes,
}


if __name__ == "__main__":
    run_parts(__doc__, "What the estimator covers", COMMAND, PARTS, 300)
