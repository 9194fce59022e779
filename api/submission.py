"""Turns the bytes of a request into a study, or raises one ``InvalidInput`` that says what is wrong.

JSON is parsed here and not by FastAPI, so that extreme nesting, a NaN or a lone surrogate gets a clear answer.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException

from scamp_service.errors import InvalidInput
from scamp_service.study.parse import parse_study
from scamp_service.study.spec import StudySpec
from workloads.archive import MAX_CODE_BYTES

MAX_SPEC_BYTES = 2**20
MAX_BODY_BYTES = MAX_SPEC_BYTES + 4 * -(-MAX_CODE_BYTES // 3)
MAX_DEPTH = 32
SHAPE = '{"spec": {…}} or, with your own files, {"spec": {…}, "code_zip": "<base64>"}'
_CODE = re.compile(rb'"code_zip"\s*:\s*"[A-Za-z0-9+/=]*"')


def parse_submission(body: bytes) -> tuple[StudySpec, bytes | None]:
    """(study, zip of the user's own files or None, which is not looked into here).

    Raises ``InvalidInput``, or ``HTTPException`` 413.
    """
    data = _parse_json(body)
    if not isinstance(data, dict) or not isinstance(data.get("spec"), dict):
        raise InvalidInput(f"the body must be an object {SHAPE}")
    unknown = sorted(set(data) - {"spec", "code_zip"})
    if unknown:
        raise InvalidInput(f"unknown key {unknown[0][:100]!r} next to spec; the body is {SHAPE}")
    spec = parse_study(data["spec"])
    return spec, _decode(data.get("code_zip"))


def _parse_json(body: bytes) -> Any:
    if len(body) > MAX_SPEC_BYTES:
        _check_size_without_code(body)
    try:
        data = json.loads(body.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_unique)
    except UnicodeDecodeError as error:
        raise InvalidInput(f"the body is not UTF-8: byte {error.start} does not begin a character") from None
    except RecursionError:
        raise _too_deep() from None
    except json.JSONDecodeError as error:
        raise InvalidInput(f"the body is not JSON: line {error.lineno}, column {error.colno}: {error.msg}") from None
    except ValueError as error:  # a number of more than 4,300 digits, or one of our own refusals
        raise InvalidInput(f"the body is not JSON that ScaMP accepts: {error}") from None
    _check_values(data)
    return data


def _check_size_without_code(body: bytes) -> None:
    """Raise 413 when the body without ``code_zip`` is too large.

    Parsed JSON takes up to thirty times its bytes, a string only one, so the limit of 64 MiB is for code alone.
    """
    code = max((match.end() - match.start() for match in _CODE.finditer(body)), default=0)
    if len(body) - code > MAX_SPEC_BYTES:
        raise HTTPException(413, f"the body without code_zip is larger than {MAX_SPEC_BYTES} bytes")


def _check_values(data: Any) -> None:
    level, depth = [data], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise _too_deep()
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below += value.keys()
                below += value.values()
            elif isinstance(value, list):
                below += value
            elif isinstance(value, str) and not value.isascii():
                _check_text(value)
        level = below


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidInput(
            "the body has half a character: a surrogate escape (\\ud800 to \\udfff) without its other half"
        ) from None


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number in JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a key that is written twice, because parsers disagree on which value counts."""
    unique: dict[str, Any] = {}
    for name, value in pairs:
        if name in unique:
            raise ValueError(f"the key {name[:100]!r} appears twice")
        unique[name] = value
    return unique


def _too_deep() -> InvalidInput:
    return InvalidInput(f"the body is nested more than {MAX_DEPTH} levels deep; no study needs that")


def _decode(code_zip: Any) -> bytes | None:
    if code_zip is None:
        return None
    if not isinstance(code_zip, str):
        raise InvalidInput("code_zip must be a zip in base64, as a string")
    try:
        return base64.b64decode(code_zip, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInput(f"code_zip is not base64: {error}") from None


def check_idempotency_key(key: str | None) -> str | None:
    """The key, if it is valid. Raises ``InvalidInput``."""
    if key is not None and not (1 <= len(key) <= 255 and key.isascii() and key.isprintable()):
        raise InvalidInput("Idempotency-Key must have 1 to 255 printable ASCII characters; use for example a UUID")
    return key


def check_content_type(headers: Mapping[str, str]) -> None:
    """Raise ``HTTPException`` 415 unless the body is declared as JSON."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        complaint = f"the request has {kind[:100]}" if kind else "the request has none"
        raise HTTPException(415, f"send the study as Content-Type: application/json; {complaint}")
