"""Hooks that schemathesis loads: most requests are about a study and a trial that exist, and specs are nearly right.

schemathesis draws every part of a request at random, and hardly ever an id that exists or a whole study that is valid.
This module runs in the Python of schemathesis, so it imports nothing of ScaMP.
"""

from __future__ import annotations

import random
from typing import Any

import schemathesis

NUM_STUDIES, NUM_TRIALS = 4, 5
USERS = ("root", "viewer", "keeper", "robot")
SPEC = {
    "name": "a study",
    "workload": "vit_digits",
    "objective": {"metric": "accuracy"},
    "space": {"lr": {"low": 0.001, "high": 0.1, "log": True}},
}
FIELDS = 2
"""So many fields of a spec are random."""


@schemathesis.hook
def before_call(context: Any, case: Any, options: Any) -> None:
    """Change three of four requests so that they reach more than the checks of their address and body."""
    draw = random.Random(repr((case.path_parameters, case.query, case.body)))
    if draw.random() < 0.25:
        return
    places = case.path_parameters or {}
    for name, num, least in (("study_id", NUM_STUDIES, 1), ("number", NUM_TRIALS, 0)):
        if name in places:
            places[name] = least + draw.randrange(num)
    if "/users/" in case.path or "/members/" in case.path:
        places["name"] = draw.choice(USERS)
    if isinstance(case.body, dict) and isinstance(spec := case.body.get("spec"), dict):
        fields = draw.sample(sorted(spec), min(FIELDS, len(spec)))
        case.body = {**case.body, "spec": {**SPEC, **{field: spec[field] for field in fields}}, "code_zip": None}
