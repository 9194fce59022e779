"""Reads the file of a study and changes it on the command line, without checking it: the service does.

YAML is read strictly, so that a repeated key or an alias is refused here, where its line is known.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from scamp.errors import InvalidInput

MAX_TEXT_BYTES = 2**20


def read_study(file: Path) -> dict[str, Any]:
    """The study in a file, as ``read_data`` reads it. Raises ``InvalidInput``."""
    study = read_data(file)
    if not isinstance(study, dict):
        raise InvalidInput(f"{file} is no study: a study is a mapping with a name, a workload and an objective")
    return study


def read_data(file: Path) -> Any:
    """The value in a file of YAML or JSON, with interpolations such as ``${oc.env:DATA}`` resolved by OmegaConf.

    Raises ``InvalidInput``.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot read the study {file}: {error}") from None
    data = load(text, is_json=file.suffix.lower() == ".json")
    return _resolved(data, file) if "${" in text and isinstance(data, dict) else data


def _resolved(data: dict[str, Any], file: Path) -> Any:
    try:
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException
    except ImportError:
        words = "OmegaConf resolves, which is not installed: pip install omegaconf, or write the values themselves"
        raise InvalidInput(f"{file} has interpolations, ${{…}}, which {words}") from None
    try:
        return OmegaConf.to_container(OmegaConf.create(data), resolve=True)
    except OmegaConfBaseException as error:
        raise InvalidInput(f"{file}: {str(error).splitlines()[0]}; the text ${{…}} itself is \\${{…}}") from None


def files_of(study: Mapping[str, Any]) -> list[str]:
    """The workload and the sampler of a study, if they are in the user's own files, as ``FILE.py:name``."""
    search = study.get("search")
    sampler = search.get("sampler") if isinstance(search, Mapping) else None
    names = [study.get("workload"), sampler.get("name") if isinstance(sampler, Mapping) else sampler]
    return [name for name in names if isinstance(name, str) and ":" in name]


def load(text: str | bytes, *, is_json: bool = False) -> Any:
    """Read YAML (or JSON) text. Raises ``InvalidInput``; with ``is_json`` mistakes are explained as those of JSON."""
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


def changed(study: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """The study with changes such as ``budget.trials=40``. Raises ``InvalidInput``.

    The value is YAML; an empty one removes the key. A number in the path is a place in a list.
    """
    data = deepcopy(dict(study))
    for change in changes:
        path, equals, text = change.partition("=")
        if not equals or not all(path.split(".")):
            raise InvalidInput(f"a change is KEY=VALUE, such as budget.trials=40; got {change!r}")
        _put(data, path, load(text) if text else _NOTHING)
    return data


def with_options(study: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The study with other values of options such as ``budget.trials``; None removes one. Raises ``InvalidInput``."""
    data = deepcopy(dict(study))
    for path, value in options.items():
        _put(data, path, _NOTHING if value is None else value)
    return data


_NOTHING = object()


def _put(data: Any, path: str, value: Any) -> None:
    """Set or remove what is at a path such as ``budget.trials``."""
    *outer, last = path.split(".")
    for part in outer:
        data = _entry(data, part) if isinstance(data, dict) else _item(data, part, path)
    key: Any = last
    if not isinstance(data, dict):
        _item(data, last, path)
        key = int(last)
    if value is not _NOTHING:
        data[key] = value
    elif isinstance(data, list) or key in data:
        del data[key]


def _entry(mapping: dict[str, Any], key: str) -> Any:
    """The part below ``key``, made if it is not there. A sampler that is given by its name alone has no options yet."""
    if key == "sampler" and isinstance(name := mapping.get(key), str):
        mapping[key] = {"name": name}
    return mapping.setdefault(key, {})


def _item(values: Any, key: str, path: str) -> Any:
    if not isinstance(values, list) or not key.isdecimal() or int(key) >= len(values):
        text = repr(values)
        raise InvalidInput(
            f"{path!r} does not fit the study: there is no {key} in {text if len(text) <= 60 else text[:57] + '…'}"
        )
    return values[int(key)]


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


class _Loader(yaml.SafeLoader):
    """A safe loader that also refuses repeated keys, and aliases, which can expand a short text without end.

    Keys such as "on" and "no" are text, as in YAML 1.2; YAML 1.1, which PyYAML follows, reads true and false.
    """

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
            if key.tag == "tag:yaml.org,2002:bool":
                key.tag = "tag:yaml.org,2002:str"
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else "")
        return super().construct_mapping(node, deep=deep)
