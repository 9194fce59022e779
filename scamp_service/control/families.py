"""The family of a candidate: trials of one family learn from each other's memory, as ``estimators.learning`` says.

A family is a workload with its code and every parameter but the numbers that the study searches, also inside lists.
Those numbers are sizes and rates: the trace follows the sizes, and memory does not depend on the rates. What is left
chooses code paths (an optimizer by name, a flag, a data set), and what no trace sees comes from code paths: trials that
differ in them say little of each other. A candidate that overrides a fixed number is of another family for the same
reason. The layout is not a part of it, as a candidate has a family before it has a plan; a family learns separately
for each layout.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from typing import Any

from estimators.model import Candidate
from scamp_service.study.values import is_number


def family(candidate: Candidate, searched: Collection[str]) -> str:
    """16 hex digits, equal for trials that learn from each other, also across studies.

    ``searched`` are the names of the study's search space.
    """
    params = candidate.params.items()
    settings = {name: value for name, value in params if name not in searched or not is_number(value)}
    settings = {name: _without_numbers(value) if name in searched else value for name, value in settings.items()}
    identity = [candidate.workload, candidate.code, settings]
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def _without_numbers(value: Any) -> Any:
    """The value of a parameter with nothing in place of the numbers inside its lists and repeated blocks."""
    match value:
        case list():
            return [_without_numbers(entry) for entry in value if not is_number(entry)]
        case dict():
            return {name: _without_numbers(entry) for name, entry in value.items() if not is_number(entry)}
    return value
