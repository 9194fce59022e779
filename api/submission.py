"""Turns the bytes of a request into a study, or raises one ``InvalidInput`` that says what is wrong.

JSON is parsed here and not by FastAPI, so that extreme nesting, a NaN or a lone surrogate gets a clear answer. Forms
are for people: a page in a browser, or ``curl -F``; they send a study's file and a user's own files as they are.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import python_multipart
from python_multipart.exceptions import FormParserError
from starlette.exceptions import HTTPException

from scamp.user_code.bundling import MAX_CODE_BYTES, MAX_CODE_FILES, zip_contents
from scamp_service.errors import InvalidInput
from scamp_service.study.parse import parse_study
from scamp_service.study.spec import StudySpec

MAX_SPEC_BYTES = 2**20
MAX_BODY_BYTES = MAX_SPEC_BYTES + 4 * -(-MAX_CODE_BYTES // 3)
MAX_DEPTH = 32
SHAPE = '{"spec": {…}} or, with your own files, {"spec": {…}, "code_zip": "<base64>"} or {"spec": {…}, "code_of": 7}'
JSON, FORM = "application/json", "multipart/form-data"
FIELDS = (
    "spec (the study as YAML or JSON), files (your own files, each sent as a file with its path), code_of (the id of a "
    "study whose files are used), paused (true: nothing trains until the study is resumed)"
)
_CODE = re.compile(rb'"code_zip"\s*:\s*"[A-Za-z0-9+/=]*"')


@dataclass(frozen=True, slots=True)
class Submission:
    """A study as it was submitted."""

    spec: StudySpec
    code: bytes | None = None
    """Zip of the user's own files, which is not looked into here."""
    code_of: int | None = None
    """Id of a study whose files are taken too; those of ``code`` replace them."""


def parse_submission(body: bytes, content_type: str) -> Submission:
    """The study in a body of this type, JSON or a form. Raises ``InvalidInput``, or ``HTTPException`` 413."""
    return _parse_form(body, content_type) if _kind_of(content_type) == FORM else _parse_object(body)


def _parse_object(body: bytes) -> Submission:
    data = _parse_json(body)
    if not isinstance(data, dict) or not isinstance(data.get("spec"), dict):
        raise InvalidInput(f"the body must be an object {SHAPE}")
    unknown = sorted(set(data) - {"spec", "code_zip", "code_of"})
    if unknown:
        raise InvalidInput(f"unknown key {unknown[0][:100]!r} next to spec; the body is {SHAPE}")
    return _submission(parse_study(data["spec"]), _decode(data.get("code_zip")), data.get("code_of"))


def _parse_form(body: bytes, content_type: str) -> Submission:
    fields, files = _form_of(body, content_type)
    unknown = sorted(fields.keys() - {"spec", "code_of", "paused"})
    if unknown or "spec" not in fields:
        complaint = f"unknown field {unknown[0][:100]!r}" if unknown else "no field spec"
        raise InvalidInput(f"the form has {complaint}; its fields are {FIELDS}")
    text = fields.get("code_of")
    code_of = int(text[:20]) if text is not None and text.isdigit() else text
    spec = parse_study(fields["spec"])
    if (paused := fields.get("paused", b"false")) not in (b"true", b"false"):
        raise InvalidInput("paused must be true or false")
    if paused == b"true":
        spec = spec.model_copy(update={"paused": True})
    return _submission(spec, zip_contents(sorted(files.items())) if files else None, code_of)


def _submission(spec: StudySpec, code: bytes | None, code_of: object) -> Submission:
    if code_of is None:
        return Submission(spec, code)
    if not isinstance(code_of, int) or isinstance(code_of, bool) or not 0 < code_of < 2**63:
        raise InvalidInput("code_of must be the id of a study whose files are used")
    return Submission(spec, code, code_of)


def _form_of(body: bytes, content_type: str) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """(fields by name, contents of the files by path). A file named ``spec`` counts as the field."""
    fields: dict[str, bytes] = {}
    files: dict[str, bytes] = {}

    def keep(values: dict[str, bytes], name: str, value: bytes) -> None:
        if name in values:
            raise InvalidInput(f"the form has {name[:100]!r} twice")
        if len(values) == MAX_CODE_FILES:
            raise InvalidInput(f"the form has more than {MAX_CODE_FILES} files: send only your code")
        values[name] = value

    def on_field(field: Any) -> None:
        keep(fields, _text(field.field_name), field.value or b"")

    def on_file(file: Any) -> None:
        name, path = _text(file.field_name), _text(file.file_name)
        file.file_object.seek(0)
        content = file.file_object.read()
        file.close()
        if name == "files" and not path and not content:
            return  # a browser's form in which no file was chosen
        if name == "files":
            keep(files, posixpath.normpath(path), content)
        else:
            keep(fields, name, content)

    headers = {"Content-Type": content_type.encode("latin-1"), "Content-Length": str(len(body)).encode()}
    try:
        python_multipart.parse_form(headers, io.BytesIO(body), on_field, on_file)
    except FormParserError as error:
        raise InvalidInput(f"the form cannot be read: {error}") from None
    boundary = python_multipart.multipart.parse_options_header(content_type)[1][b"boundary"]
    if not body.rstrip().endswith(b"--" + boundary + b"--"):
        raise InvalidInput("the form is cut off before its end; send it again")
    return fields, files


def _text(name: bytes | None) -> str:
    try:
        return (name or b"").decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidInput("a name in the form is not UTF-8") from None


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


def check_content_type(headers: Mapping[str, str]) -> str:
    """The declared type of the body. Raises ``HTTPException`` 415 unless it is JSON or a form."""
    content_type = headers.get("content-type", "")
    kind = _kind_of(content_type)
    if kind not in (JSON, FORM):
        complaint = f"the request has {kind[:100]}" if kind else "the request has none"
        raise HTTPException(415, f"send the study as Content-Type: {JSON}, or {FORM}; {complaint}")
    return content_type


def _kind_of(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()
