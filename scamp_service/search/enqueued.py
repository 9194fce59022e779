"""Candidates that a user adds to a running study, completed like those of ``start_with``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scamp_service.errors import InvalidInput
from scamp_service.search.constrained import NoCandidate
from scamp_service.search.starts import Starts
from scamp_service.study.parse import parse_study
from scamp_service.study.values import Params


def completed_candidate(spec: Mapping[str, Any], params: Mapping[str, Any], salt: int) -> Params:
    """All parameters of a candidate of a study: those that the user has left out are random, other for each ``salt``.

    Raises ``InvalidInput`` for values that the study's space does not have.
    """
    search = {**spec["search"], "seed": (int(spec["search"].get("seed", 0)) + salt) % 2**31}
    try:
        study = parse_study({**spec, "start_with": [dict(params)], "search": search})
        return Starts(study)[0]
    except InvalidInput as error:
        wrong = str(error).replace("start_with[0].", "").replace("start_with[0]", "the candidate")
        raise InvalidInput(wrong.replace("the study is not valid", "the candidate is not valid")) from None
    except NoCandidate as error:
        raise InvalidInput(str(error).replace("start_with[0]", "the candidate")) from None
