"""Which trials learn of each other's memory: the family of a candidate. What they learn is in ``estimators.learning``.

A family is a workload with its code and every parameter but the numbers that the study searches. Those numbers are
sizes and rates: the trace follows the sizes, and memory does not depend on the rates. What is left chooses code paths
(an optimizer by name, a flag, a data set), and what no trace sees comes from code paths: trials that differ in them say
little of each other. A candidate that overrides a fixed number is of another family for the same reason. The layout is
no part of it, as a candidate has a family before it has a plan; a family learns for each layout by itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection

from estimators.model import Candidate


def family(candidate: Candidate, searched: Collection[str]) -> str:
    """16 hex digits, equal for trials that learn from each other, also across studies.

    ``searched`` are the names of the study's search space.
    """
    params = candidate.params.items()
    settings = {name: value for name, value in params if name not in searched or isinstance(value, bool | str)}
    identity = [candidate.workload, candidate.code, settings]
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
