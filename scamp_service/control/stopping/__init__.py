"""Stopping rules: which trials of a study continue at the steps where they are judged.

``RULES`` is the only table of them: the name in a study's ``stopping.rule`` → how the rule is made from its options and
the spec. The rules follow the protocol in ``rule``. Not here: when trials are judged and what becomes of them
(``decide.follow``, ``decide.promote``), and reading what they have reported (``projection``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scamp_service.control.stopping.at_reports import Patience, Percentile, Threshold
from scamp_service.control.stopping.hyperband import Hyperband
from scamp_service.control.stopping.population import Population
from scamp_service.control.stopping.rule import StoppingRule
from scamp_service.control.stopping.several import NO_RULES, Several
from scamp_service.control.stopping.successive_halving import SuccessiveHalving
from scamp_service.study.spec import StudySpec

RULES: Mapping[str, Callable[[Any, StudySpec], StoppingRule]] = {
    "asha": SuccessiveHalving.of_options,
    "hyperband": Hyperband.of_options,
    "median": Percentile.of_options,
    "none": lambda *_: NO_RULES,
    "patience": Patience.of_options,
    "pbt": Population.of_options,
    "percentile": Percentile.of_options,
    "threshold": Threshold.of_options,
}


def rule_of(spec: StudySpec) -> StoppingRule:
    """The stopping rule of a study."""
    rules = [RULES[options.rule](options, spec) for options in spec.stopping_rules]
    return rules[0] if len(rules) == 1 else Several(tuple(rules))
