"""Reads a study from YAML, JSON or a mapping, and writes it as YAML.

One ``InvalidInput`` names everything that is wrong with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from scamp_service.errors import InvalidInput
from scamp_service.study.complaints import complaints, quoted
from scamp_service.study.spec import StudySpec

MAX_TEXT_BYTES = 2**20


def read_study(file: Path) -> StudySpec:
    """The validated study in a file, of YAML or JSON. Raises ``InvalidInput``."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot read the study {file}: {error}") from None
    return parse_study(text, is_json=file.suffix.lower() == ".json")


def parse_study(source: str | bytes | Mapping[str, Any], *, is_json: bool = False) -> StudySpec:
    """A validated study from YAML (or JSON) text, or from its parsed form. Raises ``InvalidInput``.

    With ``is_json``, mistakes in the text are explained as those of JSON.
    """
    data = source if isinstance(source, Mapping) else _load_yaml(source, is_json)
    if not isinstance(data, Mapping):
        got = "nothing" if data is None else quoted(data)
        raise InvalidInput(f"a study is a mapping of {', '.join(StudySpec.model_fields)}; got {got}")
    try:
        return StudySpec.model_validate(data)
    except ValidationError as error:
        raise InvalidInput(f"the study is not valid: {complaints(error)}") from None


def changed_study(spec: StudySpec, changes: Sequence[str]) -> StudySpec:
    """The study with changes such as ``budget.trials=40``. Raises ``InvalidInput``.

    The value is YAML; an empty one removes the key. A number in the path is a place in a list.
    """
    if not changes:
        return spec
    data = deepcopy(spec.as_given())
    for change in changes:
        path, equals, text = change.partition("=")
        *outer, last = path.split(".")
        if not equals or not all((*outer, last)):
            raise InvalidInput(f"a change is KEY=VALUE, such as budget.trials=40; got {change!r}")
        place: Any = data
        for part in outer:
            place = place.setdefault(part, {}) if isinstance(place, dict) else _item(place, part, change)
        key: Any = last
        if not isinstance(place, dict):
            _item(place, last, change)
            key = int(last)
        if text:
            place[key] = _load_yaml(text, is_json=False)
        elif isinstance(place, list) or key in place:
            del place[key]
    return parse_study(data)


def _item(values: Any, key: str, change: str) -> Any:
    if not isinstance(values, list) or not key.isdecimal() or int(key) >= len(values):
        raise InvalidInput(f"{change!r} does not fit the study: there is no {key} in {quoted(values)}")
    return values[int(key)]


def study_text(spec: StudySpec) -> str:
    """The study as YAML that ``parse_study`` reads, without most of what is the default anyway."""
    with_defaults, changed = spec.to_json(), spec.shortest()
    if not spec.objectives:
        objective = _some(with_defaults["objective"], ["metric", "direction"])
        changed["objective"] = objective | changed.get("objective", {})
    changed["search"] = {"sampler": spec.search.sampler.name, **changed.get("search", {})}
    if not spec.every_objective.are_predicted:
        usual = StudySpec.model_fields["stopping"].default
        changed.setdefault("stopping", usual.model_dump(mode="json", exclude_none=True))
    budget = _some(with_defaults["budget"], ["trials", "steps", "epochs"]) | changed.get("budget", {})
    changed["budget"] = {name: limit for name, limit in budget.items() if limit is not None}
    return yaml.dump(changed, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def _some(mapping: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: mapping[name] for name in names}


class _Dumper(yaml.SafeDumper):
    """A safe dumper that escapes what is not printable. PyYAML writes some line breaks plainly, and reads a space."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, None if text.isprintable() else '"'),
)


class _Loader(yaml.SafeLoader):
    """A safe loader that also refuses repeated keys, and aliases, which can expand a short text without end."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases (*name) are not allowed", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} is repeated", key.start_mark
                )
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else "")
        return super().construct_mapping(node, deep=deep)


def _load_yaml(text: str | bytes, is_json: bool) -> Any:
    if len(text) > MAX_TEXT_BYTES:
        raise InvalidInput(f"the study is {len(text)} bytes long; at most {MAX_TEXT_BYTES} are allowed")
    try:
        return yaml.load(text, _Loader)
    except RecursionError:
        raise InvalidInput("the study is nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date or a number that does not exist
        if is_json:
            return _load_json(text)  # some of what YAML refuses is JSON, such as tabs
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise InvalidInput(f"the study is not valid YAML{where}: {problem}") from None


def _load_json(text: str | bytes) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_without_repeated_keys)
    except RecursionError:
        raise InvalidInput("the study is nested too deeply") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InvalidInput(f"the study is not valid JSON in {where}: {error.msg}") from None
    except ValueError as error:  # a repeated key, or a number of more than 4,300 digits
        raise InvalidInput(f"the study is not valid JSON: {error}") from None


def _without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} is repeated")
    return mapping
