"""Reads a study from YAML, JSON or a mapping, and writes it as YAML.

One ``InvalidInput`` names everything that is wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import yaml
from pydantic import ValidationError

from scamp_service.errors import InvalidInput
from scamp_service.study.complaints import complaints, quoted
from scamp_service.study.spec import StudySpec

MAX_TEXT_BYTES = 2**20


def parse_study(source: str | bytes | Mapping[str, Any]) -> StudySpec:
    """A validated study from YAML (or JSON) text, or from its parsed form. Raises ``InvalidInput``."""
    data = source if isinstance(source, Mapping) else _load_yaml(source)
    if not isinstance(data, Mapping):
        got = "nothing" if data is None else quoted(data)
        raise InvalidInput(f"a study is a mapping of {', '.join(StudySpec.model_fields)}; got {got}")
    try:
        return StudySpec.model_validate(data)
    except ValidationError as error:
        raise InvalidInput(f"the study is not valid: {complaints(error)}") from None


def study_text(spec: StudySpec) -> str:
    """The study as YAML that ``parse_study`` reads, without most of what is the default anyway."""
    with_defaults, changed = spec.to_json(), spec.model_dump(mode="json", exclude_defaults=True)
    budget = [name for name in ("trials", "steps", "epochs") if with_defaults["budget"][name] is not None]
    changed["objective"] = {
        **_some(with_defaults["objective"], ["metric", "direction"]),
        **changed.get("objective", {}),
    }
    changed["search"] = {"sampler": spec.search.sampler.name, **changed.get("search", {})}
    usual = StudySpec.model_fields["stopping"].default
    changed.setdefault("stopping", usual.model_dump(mode="json", exclude_none=True))
    changed["budget"] = {**_some(with_defaults["budget"], budget), **changed.get("budget", {})}
    return yaml.safe_dump(changed, sort_keys=False, allow_unicode=True)


def _some(mapping: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: mapping[name] for name in names}


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


def _load_yaml(text: str | bytes) -> Any:
    if len(text) > MAX_TEXT_BYTES:
        raise InvalidInput(f"the study is {len(text)} bytes long; at most {MAX_TEXT_BYTES} are allowed")
    try:
        return yaml.load(text, _Loader)
    except RecursionError:
        raise InvalidInput("the study is nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date or a number that does not exist
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise InvalidInput(f"the study is not valid YAML{where}: {problem}") from None
