"""Reads a study from YAML, JSON or a mapping, and writes it as YAML.

One ``InvalidInput`` names everything that is wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from scamp.study_file import changed, load, read_data
from scamp_service.errors import InvalidInput
from scamp_service.study.complaints import complaints, quoted
from scamp_service.study.spec import StudySpec


def read_study(file: Path) -> StudySpec:
    """The validated study in a file, of YAML or JSON. Raises ``InvalidInput``."""
    return _validated(read_data(file))


def parse_study(source: str | bytes | Mapping[str, Any], *, is_json: bool = False) -> StudySpec:
    """A validated study from YAML (or JSON) text, or from its parsed form. Raises ``InvalidInput``.

    With ``is_json``, mistakes in the text are explained as those of JSON.
    """
    return _validated(source if isinstance(source, Mapping) else load(source, is_json=is_json))


def _validated(data: Any) -> StudySpec:
    if not isinstance(data, Mapping):
        got = "nothing" if data is None else quoted(data)
        raise InvalidInput(f"a study is a mapping of {', '.join(StudySpec.model_fields)}; got {got}")
    try:
        return StudySpec.model_validate(data)
    except ValidationError as error:
        raise InvalidInput(f"the study is not valid: {complaints(error)}") from None


def changed_study(spec: StudySpec, changes: Sequence[str]) -> StudySpec:
    """The study with changes such as ``budget.trials=40`` (``scamp.study_file.changed``). Raises ``InvalidInput``."""
    return parse_study(changed(spec.as_given(), changes)) if changes else spec


def study_text(spec: StudySpec) -> str:
    """The study as YAML that ``parse_study`` reads, without most of what is the default anyway."""
    with_defaults, short = spec.to_json(), spec.shortest()
    if not spec.objectives:
        objective = _some(with_defaults["objective"], ["metric", "direction"])
        short["objective"] = objective | short.get("objective", {})
    short["search"] = {"sampler": spec.search.sampler.name, **short.get("search", {})}
    if not spec.every_objective.are_predicted:
        usual = StudySpec.model_fields["stopping"].default
        short.setdefault("stopping", usual.model_dump(mode="json", exclude_none=True))
    budget = _some(with_defaults["budget"], ["trials", "steps", "epochs"]) | short.get("budget", {})
    short["budget"] = {name: limit for name, limit in budget.items() if limit is not None}
    return yaml.dump(short, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def _some(mapping: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: mapping[name] for name in names}


class _Dumper(yaml.SafeDumper):
    """A safe dumper that escapes what is not printable. PyYAML writes some line breaks plainly, and reads a space."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, None if text.isprintable() else '"'),
)
