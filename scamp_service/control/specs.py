"""The specs of live studies, and the rules that follow from each of them: made once, and again when it has changed."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from scamp_service.control.decide.study_rules import Progress, Search, Sharing, StudyRules
from scamp_service.control.stopping import rule_of
from scamp_service.model import Study
from scamp_service.search.perturb import perturbation_of
from scamp_service.study.spec import StudySpec

_CHANGEABLE = ("budget", "priority", "paused")


class Specs:
    """Specs of studies, and all that follows from them alone. Only what ``_CHANGEABLE`` names may change in one."""

    def __init__(self) -> None:
        self._specs: dict[int, StudySpec] = {}
        self._changeable: dict[int, tuple[Any, ...]] = {}  # study → what its spec has for ``_CHANGEABLE``
        self._rules: dict[int, StudyRules] = {}

    def __getitem__(self, study_id: int) -> StudySpec:
        """The spec of a study that has been read."""
        return self._specs[study_id]

    def read(self, study: Study) -> StudySpec:
        """The study's spec. Raises ``ValueError`` if this version cannot read it."""
        changeable = tuple(map(study.spec.get, _CHANGEABLE))
        if study.id not in self._specs or self._changeable[study.id] != changeable:
            self._rules.pop(study.id, None)
            self._specs[study.id], self._changeable[study.id] = StudySpec.model_validate(study.spec), changeable
        return self._specs[study.id]

    def rules(self, study: Study) -> StudyRules:
        """The study's rules as far as its spec decides them, with the state that it had when they were made."""
        spec = self.read(study)
        if study.id not in self._rules:
            self._rules[study.id] = _rules(study, spec)
        return self._rules[study.id]

    def forget_ended(self, live: Container[int]) -> None:
        """Keep only the studies in ``live``."""
        for study_id in [spec for spec in self._specs if spec not in live]:
            del self._specs[study_id], self._changeable[study_id]
            self._rules.pop(study_id, None)


def _rules(study: Study, spec: StudySpec) -> StudyRules:
    budget, objectives = spec.budget, spec.every_objective
    search = Search(
        names=frozenset(spec.space),
        mutate=perturbation_of(spec),
        one_shot=spec.search.one_shot,
        inherits=spec.search.inherits,
        predicted=spec.predicted,
        launches_front=objectives.are_predicted and budget.seconds is None and budget.target is None,
    )
    return StudyRules(
        id=study.id,
        workload=spec.workload,
        code=study.code,
        seed=spec.search.seed,
        report_every=spec.report_every,
        objectives=objectives,
        stopping=rule_of(spec),
        budget=budget,
        progress=Progress(study.state),
        search=search,
        sharing=Sharing(spec.project, study.owner, spec.priority, spec.paused),
        repeats=spec.repeats,
        plan=spec.given_plan,
        guard=spec.guard,
        pack=spec.pack,
        kinds=frozenset(spec.kinds),
    )
