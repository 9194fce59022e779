"""Stopping rules: which trials of a study continue at the steps where they are judged.

``RULES`` is the only table of them: the name in a study's ``stopping.rule`` → how the rule is made from the spec. Each
rule has a file of its own, which follows the protocol in ``rule``. Not here: when trials are judged and what becomes of
them (``decide.follow``), and reading what they have reported (``projection``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from scamp_service.control.stopping.never_stop import NeverStop
from scamp_service.control.stopping.rule import Rule
from scamp_service.control.stopping.successive_halving import SuccessiveHalving
from scamp_service.study.spec import RuleName, StudySpec

RULES: Mapping[RuleName, Callable[[StudySpec], Rule]] = {
    "asha": SuccessiveHalving.of_spec,
    "none": NeverStop.of_spec,
}


def rule_of(spec: StudySpec) -> Rule:
    """The stopping rule of a study."""
    return RULES[spec.stopping.rule](spec)
