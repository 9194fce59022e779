"""Explains in one line what is wrong with a study: each mistake with its field and the values allowed there."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from scamp_service.study.sampler_options import SAMPLER_OPTIONS, FileOptions
from scamp_service.study.spaces.space import MODELS
from scamp_service.study.spec import StudySpec
from scamp_service.study.stopping import RULE_OPTIONS

_TOO_FEW = re.compile(r"^(?:List|Dictionary) should have at least (\d+ items?) after validation, not \d+$")
_READ = 500
"""Mistakes that are put into words. A body of 1 MiB may have 60,000, whose words would take seconds."""


def complaints(error: ValidationError, most: int = 5) -> str:
    """The first ``most`` mistakes in a ``StudySpec``, separated by semicolons, and the number of others."""
    details = error.errors(include_url=False, include_context=False)
    mistakes = list(dict.fromkeys(_complaint(detail) for detail in details[:_READ]))
    num_unread = len(mistakes) - most + max(0, len(details) - _READ)
    more = f"; and {num_unread} more" if num_unread > 0 else ""
    # The user's names and values may contain characters that no terminal or response can show.
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in "; ".join(mistakes[:most]) + more)


def _complaint(detail: ErrorDetails) -> str:
    path, options = _place(detail["loc"])
    where = ".".join(str(part) for part in path if part != "[key]")
    kind, message = detail["type"], detail["msg"].removeprefix("Value error, ")
    if kind == "missing":
        return f"{where} is missing"
    if kind == "extra_forbidden":
        return _unknown_key(path, options)
    if kind == "model_type":
        message = f"must be a mapping of {', '.join(options.model_fields)}"
    elif kind != "value_error":
        message = message.replace("Input should be ", "must be ").replace("String should", "must")
        message = _TOO_FEW.sub(r"must have at least \1", message)
    if kind == "rule" and isinstance(detail["input"], Mapping):
        return f"{where}.rule: must be one of {', '.join(RULE_OPTIONS)} (got {quoted(detail['input']['rule'])})"
    shown = (
        "" if isinstance(detail["input"], Mapping | list) and detail["input"] else f" (got {quoted(detail['input'])})"
    )
    return f"{where}: {message}{shown}" if where else message


def _place(loc: tuple[int | str, ...]) -> tuple[list[int | str], type[BaseModel]]:
    """The place of a mistake in the user's text, without the names of the forms that a field may have, and the part of
    the study that has the field."""
    match loc:
        case ("space", _, *_):
            return _place_in_space(loc)
        case ("search", "history", place, name, *_):  # without the names of the types that an id may have
            return ["search", "history", place, name], _model_at(loc)
        case ("search", "sampler", name, *rest):
            return ["search", "sampler", *rest], SAMPLER_OPTIONS.get(str(name), FileOptions)
        case ("stopping", *_):
            path = [part for n, part in enumerate(loc) if n not in (1, 3 if loc[1:2] == ("several",) else 2)]
            return path, next((RULE_OPTIONS[str(part)] for part in loc[2:4] if part in RULE_OPTIONS), StudySpec)
    return list(loc), _model_at(loc)


def _place_in_space(loc: tuple[int | str, ...]) -> tuple[list[int | str], type[BaseModel]]:
    path, following = [loc[0]], "name"
    options: type[BaseModel] = MODELS["range"]
    for part in loc[1:]:
        if following == "kind":
            options, following = MODELS.get(str(part), MODELS["range"]), "field"
            continue
        path.append(part)
        if following == "name":
            following = "kind"
        else:
            is_block_field = following == "field" and options is MODELS["block"]
            following = {"each": "name", "repeat": "kind"}.get(str(part), "") if is_block_field else ""
            options = _model_at([part], options)
    return path, options


def _model_at(path: Iterable[int | str], model: type[BaseModel] = StudySpec) -> type[BaseModel]:
    """The model of the mapping at ``path`` in ``model``, or else of the innermost mapping around it."""
    for name in path:
        field = model.model_fields.get(str(name))
        model = _model_of(field.annotation if field else None) or model
    return model


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """The only model in the type of a field, such as ``list[Earlier]``; None if there is none, or several."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    models = {model for part in get_args(annotation) if (model := _model_of(part))}
    return models.pop() if len(models) == 1 else None


def _unknown_key(path: Sequence[int | str], options: type[BaseModel]) -> str:
    allowed = list((options if len(path) > 1 else StudySpec).model_fields)
    close = difflib.get_close_matches(str(path[-1]), allowed, n=1)
    hint = f"did you mean {close[0]}?" if close else f"allowed keys: {', '.join(allowed)}"
    return f"{'.'.join(map(str, path))}: unknown key; {hint}"


def quoted(value: Any) -> str:
    """The user's value as Python prints it, cut to 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
