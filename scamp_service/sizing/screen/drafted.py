"""Screens the space of a study that is being written, in a process of its own: `python -m` with this module's name.

The API sends it the pickled arguments of ``answer``, and reads a line of JSON: what of the space fits on a cluster.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from placement.model import Cluster
from placement.planning.answers import ChosenPlan
from scamp_service.errors import InvalidInput
from scamp_service.model import Json
from scamp_service.sizing.calibration import device_kind_of
from scamp_service.sizing.candidates import proposed_candidates
from scamp_service.sizing.screen.screened import Screened
from scamp_service.sizing.screen.screening import screen
from scamp_service.sizing.tracing.options import Tracing
from scamp_service.sizing.user_workload import with_space
from scamp_service.study.spec import StudySpec

MOST_PARTS = 4
"""Parts of a parameter's values whose candidates are counted."""


def counted(screened: Sequence[Screened]) -> Json:
    """How many candidates fit, on how many ranks, and for which values of the parameters."""
    chosen = [each.choice for each in screened if isinstance(each.choice, ChosenPlan)]
    by_ranks: defaultdict[int, list[int]] = defaultdict(list)
    for choice in chosen:
        by_ranks[choice.plan.world_size].append(choice.prediction.reserved_mib)
    refused = [each.refused for each in screened if each.refused]
    return {
        "num_candidates": len(screened),
        "num_fitting": len(chosen),
        "num_refused": len(refused),
        "why_refused": refused[0].splitlines()[0] if refused else "",
        "ranks": [
            {"num_ranks": ranks, "num_candidates": len(mibs), "reserved_mib": median(mibs)}
            for ranks, mibs in sorted(by_ranks.items())
        ],
        "parts": list(_parts([(each.params, isinstance(each.choice, ChosenPlan)) for each in screened])),
    }


def _parts(tried: Sequence[tuple[Json, bool]]) -> Iterator[Json]:
    """Parts of the values of each parameter that has several, with how many of their candidates fit."""
    for name in dict.fromkeys(name for params, _ in tried for name in params):
        pairs = [(params[name], fits) for params, fits in tried if name in params]
        values = dict.fromkeys(value if not isinstance(value, list | dict) else None for value, _ in pairs)
        if None in values or len(values) < 2:
            continue
        is_number = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        pairs.sort(key=lambda pair: pair[0] if is_number else str(pair[0]))
        if len(values) <= MOST_PARTS or not is_number:
            counts = Counter(value for value, _ in pairs)
            fitting = Counter(value for value, fits in pairs if fits)
            for value, num in list(counts.items())[:MOST_PARTS]:
                yield _part(name, value, value, num, fitting[value])
            continue
        size = -(-len(pairs) // MOST_PARTS)
        for start in range(0, len(pairs), size):
            part = pairs[start : start + size]
            yield _part(name, part[0][0], part[-1][0], len(part), sum(fits for _, fits in part))


def _part(name: str, first: Any, last: Any, num: int, fitting: int) -> Json:
    return {"name": name, "first": first, "last": last, "num_candidates": num, "num_fitting": fitting}


def answer(spec: StudySpec, code: bytes | None, cluster: Cluster, num_candidates: int, data_dir: Path) -> Json:
    """The counts of random candidates of a study, with the zip of its files. Raises ``InvalidInput``."""
    able = cluster.of_kinds(frozenset(spec.kinds))
    if not able.devices:
        raise InvalidInput(cluster.why_none_of(spec.kinds))
    spec = with_space(spec, code)
    candidates = proposed_candidates(spec, num_candidates, at_random=True)
    tracing = Tracing(data_dir / "profiles", spec.budget.trace_seconds)
    kind = device_kind_of(data_dir, able)
    return counted(screen(spec.workload, code, candidates, able, tracing, kind).candidates)


if __name__ == "__main__":
    try:
        print(json.dumps(answer(*pickle.load(sys.stdin.buffer))))
    except InvalidInput as error:
        print(json.dumps({"error": str(error)}))
