"""Whatever is sent, the answer is one clear problem and nothing is stored, or a study."""

from __future__ import annotations

import base64
import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api.submission import MAX_BODY_BYTES
from scamp.user_code.bundling import MAX_CODE_BYTES
from tests.services.serving import SPEC, WORKLOAD, InProcess

JSON = {"Content-Type": "application/json"}
MODEL = WORKLOAD.encode()
BINARY = bytes(range(256)) * 9 + b"\r\n--x--\r\n"
STUDY = """
name: from a form  # with a comment
workload: models/net.py:Mine
objective: {metric: accuracy}
space: {lr: {low: 1.0e-3, high: 0.1, log: true}}
"""

pytestmark = pytest.mark.usefixtures("warm_traces")


def zipped(**files: bytes) -> str:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name.replace("__", "/").replace("_py", ".py"), content)
    return base64.b64encode(buffer.getvalue()).decode()


def refused(api: InProcess, status: int, **options: Any) -> str:
    """The detail of the problem, after a look that nothing was stored."""
    answer = api.post("/v1/studies", **options)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert api.store.studies.page() == [] and api.store.events.last_id() == 0
    detail: str = answer.json()["detail"]
    return detail


def spec_with(**changes: Any) -> dict[str, Any]:
    return {"spec": {**SPEC, **changes}}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not JSON"),
        (b"{", "line 1, column 2"),
        (b"\xff\xfe", "not UTF-8: byte 0"),
        (b"[" * 100_000, "nested more than 32"),
        (b'{"spec":' + b'{"a":' * 500 + b"1" + b"}" * 501, "nested more than 32"),
        (b'{"spec": {"space": NaN}}', "NaN is not a number in JSON"),
        (b'{"spec": {"space": -Infinity}}', "-Infinity is not a number in JSON"),
        (b"1" * 5000, "not JSON that ScaMP accepts"),
        (b'{"spec": {}, "spec": {}}', "'spec' appears twice"),
        (("{" + ",".join(f'"k{n}":1' for n in range(16_000)) + ',"k15999":2}').encode(), "'k15999' appears twice"),
        (b'{"spec": {"name": "\\ud800"}}', "half a character"),
        (b'{"spec": {"\\udfff": 1}}', "half a character"),
        (b"null", 'the body must be an object {"spec"'),
        (b'{"spec": []}', 'the body must be an object {"spec"'),
        (json.dumps(SPEC).encode(), 'the body must be an object {"spec"'),
        (json.dumps({**spec_with(), "sepc": 1}).encode(), "unknown key 'sepc'"),
    ],
)
def test_what_is_not_a_submission_is_refused_with_the_reason(api: InProcess, body: bytes, words: str) -> None:
    assert words in refused(api, 422, content=body, headers=JSON)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"space": {}}, "space is empty"),
        ({"space": {"lr": {"low": 0, "high": 1, "log": True}}}, "a log range needs low > 0"),
        ({"space": {"lr": {"low": 1e-3, "high": 1e999}}}, "finite"),
        ({"space": {"lr": {"low": 0.0, "high": 1.0, "step": 5e-324}}}, "take a larger step"),
        ({"space": 5}, "space"),
        (
            {"workload": "vit_digit"},
            "choose from stdlib_gpt, unet3d_blobs, vit_digits, vit_digits_with_fault, or name your own",
        ),
        ({"workload": "../x.py:A"}, "workload"),
        ({"objective": {}}, "objective.metric is missing"),
        ({"objective": {"metric": "acuracy"}}, "evaluate returns accuracy, loss: did you mean 'accuracy'?"),
        ({"space": {"widht": {"choice": [32]}}}, "never reads the parameter 'widht': did you mean 'width'?"),
        ({"budget": {"trials": -1}}, "budget.trials"),
        ({"budget": {"trails": 3}}, "did you mean trials"),
        ({"name": ""}, "name"),
        ({"name": "a\x00b"}, "name"),
    ],
)
def test_a_study_that_is_wrong_is_refused_with_field_and_rule(
    api: InProcess, changes: dict[str, Any], words: str
) -> None:
    body = json.dumps(spec_with(**changes)).replace("Infinity", "1e999").encode()
    assert words in refused(api, 422, content=body, headers=JSON)


def test_only_json_and_forms_with_files_are_taken(api: InProcess) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        complaint = refused(api, 415, content=b"{}", headers={"Content-Type": kind})
        assert "application/json, or multipart/form-data" in complaint


@pytest.mark.parametrize("headers", [{"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}])
def test_no_form_of_another_site_can_submit(api: InProcess, headers: dict[str, str]) -> None:
    files = [("files", ("models/net.py", MODEL))]
    assert "another origin" in refused(api, 403, data={"spec": STUDY}, files=files, headers=headers)


def test_a_form_is_the_same_study_as_its_parts_in_json(api: InProcess) -> None:
    files = [("files", ("models/net.py", MODEL)), ("files", ("models/weights.bin", BINARY))]
    answer = api.post("/v1/studies", data={"spec": STUDY}, files=files, headers={"Idempotency-Key": "k"})
    assert answer.status_code == 201, answer.text
    study = api.store.studies.get(answer.json()["id"])
    assert study.name == "from a form" and study.code is not None
    with zipfile.ZipFile(io.BytesIO(api.store.blobs.get(study.code))) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == {
            "models/net.py": MODEL,
            "models/weights.bin": BINARY,
        }
    again = api.post("/v1/studies", data={"spec": STUDY}, files=files[::-1], headers={"Idempotency-Key": "k"})
    assert again.json()["id"] == study.id, "whatever the order of its files"


def test_the_file_of_a_study_may_be_sent_as_one(api: InProcess) -> None:
    study = STUDY.replace("models/net.py:Mine", "vit_digits").encode()
    assert api.post("/v1/studies", files=[("spec", ("study.yaml", study))]).status_code == 201


@pytest.mark.full
def test_a_form_may_take_the_files_of_another_study(api: InProcess) -> None:
    first = api.post("/v1/studies", data={"spec": STUDY}, files=[("files", ("models/net.py", MODEL))]).json()["id"]
    changed = STUDY.replace("from a form", "a copy")
    boundary = {"Content-Type": "multipart/form-data; boundary=x"}
    answer = api.post("/v1/studies", content=form(spec=changed, code_of=str(first)), headers=boundary)
    assert answer.status_code == 201, answer.text
    copy = api.store.studies.get(answer.json()["id"])
    assert copy.name == "a copy" and copy.code == api.store.studies.get(first).code
    as_json = api.post("/v1/studies", json={**spec_with(workload="models/net.py:Mine"), "code_of": first})
    assert api.store.studies.get(as_json.json()["id"]).code == copy.code
    for wrong in ("1", True, 0, 2**63):
        refused_words = api.post("/v1/studies", json={**spec_with(), "code_of": wrong}).json()["detail"]
        assert "must be the id of a study" in refused_words
    parts = {"data": {"spec": STUDY, "code_of": str(first), "paused": "true"}, "files": [("files", ("b.py", b"b = 1"))]}
    with_more = api.post("/v1/studies", **parts).json()
    assert (with_more["has_files"], with_more["spec"]["paused"]) == (True, True)
    archive = zipfile.ZipFile(io.BytesIO(api.get(f"/v1/studies/{with_more['id']}/files.zip").content))
    assert archive.namelist() == ["b.py", "models/net.py"]
    built_in = form(spec=STUDY.replace("models/net.py:Mine", "vit_digits"), code_of=str(first))
    assert "takes no files" in api.post("/v1/studies", content=built_in, headers=boundary).json()["detail"]


def form(**fields: str) -> bytes:
    """A form whose parts end at ``--x``."""
    parts = [f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n' for name, text in fields.items()]
    return "".join([*parts, "--x--\r\n"]).encode()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "cut off before its end"),
        (b"--x--\r\n", "no field spec"),
        (b"nonsense", "cannot be read"),
        (form(code_of="1"), "no field spec; its fields are spec (the study as YAML or JSON)"),
        (form(spec="a: ["), "not valid YAML in line 1"),
        (form(spec="7"), "a study is a mapping"),
        (form(spec="name: a", sepc=""), "unknown field 'sepc'"),
        (form(spec="name: a").removesuffix(b"--x--\r\n") + form(spec="name: b"), "'spec' twice"),
        (form(spec=STUDY, code_of="first"), "must be the id of a study"),
        (form(spec=STUDY, code_of="99"), "there is no study 99"),
        (form(spec=STUDY), "upload it"),
        (form(spec=STUDY, paused="yes"), "paused must be true or false"),
        (form(spec=STUDY, files="net.py"), "your own files, each sent as a file"),
        (form(spec=STUDY)[:-10], "cut off before its end"),
        (form(spec="x" * (2**20 + 1)), "at most 1048576 are allowed"),
    ],
)
def test_a_form_that_is_no_study_is_refused_with_the_reason(api: InProcess, body: bytes, words: str) -> None:
    status = 404 if "there is no" in words else 422
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    assert words in refused(api, status, content=body, headers=headers)


def test_a_file_is_sent_once_and_within_its_folder(api: InProcess) -> None:
    twice = [("files", ("models/net.py", MODEL))] * 2
    assert "'models/net.py' twice" in refused(api, 422, data={"spec": STUDY}, files=twice)
    outside = [("files", ("models/net.py", MODEL)), ("files", ("../x.py", b""))]
    assert "outside its folder" in refused(api, 422, data={"spec": STUDY}, files=outside)
    same = [("files", ("models/net.py", MODEL)), ("files", ("./models/../models/net.py", MODEL))]
    assert "'models/net.py' twice" in refused(api, 422, data={"spec": STUDY}, files=same)


@pytest.mark.parametrize("key", ["", "k" * 256, "k\tk", "k\xe9y"])
def test_an_idempotency_key_is_short_and_printable(api: InProcess, key: str) -> None:
    headers = [(b"Content-Type", b"application/json"), (b"Idempotency-Key", key.encode("latin-1"))]
    assert "Idempotency-Key" in refused(api, 422, content=json.dumps(spec_with()).encode(), headers=headers)


def test_a_body_without_code_is_bounded_at_one_mib(api: InProcess) -> None:
    body = json.dumps(spec_with(name="x" * 2**20)).encode()
    assert "larger than 1048576 bytes" in refused(api, 413, content=body, headers=JSON)


def test_code_zip_does_not_lend_its_bound_to_other_strings(api: InProcess) -> None:
    body = json.dumps({**spec_with(name="x" * 2**20), "code_zip": "A" * 2**20}).encode()
    assert "without code_zip" in refused(api, 413, content=body, headers=JSON)


def test_a_length_beyond_the_bound_is_refused_before_the_body_is_read(api: InProcess) -> None:
    read = []

    async def body() -> Any:
        read.append(1)
        yield b""

    refused(api, 413, content=body(), headers={**JSON, "Content-Length": str(200 * 2**20)})
    assert not read


def test_a_body_that_hides_its_length_is_cut_off_at_the_bound(api: InProcess) -> None:
    read = 0

    async def body() -> Any:
        nonlocal read
        for _ in range(200):
            read += 2**20
            yield b" " * 2**20

    refused(api, 413, content=body(), headers=JSON)
    assert read <= MAX_BODY_BYTES + 2**20


def test_a_workload_of_the_users_is_stored_with_its_files(api: InProcess) -> None:
    code = zipped(models__net_py=MODEL)
    answer = api.post("/v1/studies", json={**spec_with(workload="models/net.py:Mine"), "code_zip": code})
    assert answer.status_code == 201
    study = api.store.studies.get(answer.json()["id"])
    assert study.code is not None and api.store.blobs.get(study.code) == base64.b64decode(code)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (None, "upload it"),
        (5, "as a string"),
        ("no base64!", "not base64"),
        (base64.b64encode(b"no zip").decode(), "not a zip"),
        (zipped(other_py=MODEL), "your files have no net.py"),
        (zipped(net_py=b"class Mine(:"), "net.py, line 1, is not valid Python"),
        (zipped(net_py=b"\xff\xfe"), "is not valid Python"),
        (zipped(net_py=b"x = 1\0"), "is not valid Python"),
        (zipped(net_py=b"(" * 10_000), "is not valid Python"),
        (zipped(net_py=b"-" * 500_000 + b"1"), "is not valid Python"),
        (zipped(net_py=b"class Other: ...\ndef f():\n  class Mine: ..."), "defines no class Mine"),
        (zipped(net_py=b"#" * (2**20 + 1)), "larger than 1 MiB"),
        (zipped(net_py=MODEL, **{"..__x_py": b""}), "outside its folder"),
        (zipped(net_py=MODEL, zeros=bytes(MAX_CODE_BYTES + 1)), "unpacks to more than 64 MiB"),
    ],
)
def test_files_that_cannot_be_the_workload_are_refused(api: InProcess, code: Any, words: str) -> None:
    assert words in refused(api, 422, json={**spec_with(workload="net.py:Mine"), "code_zip": code})


def test_the_users_code_is_imported_in_a_process_of_its_own(api: InProcess, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    source = f"import os; open({str(mark)!r}, 'w').write(str(os.getpid()))\n{WORKLOAD}".encode()
    answer = api.post("/v1/studies", json={**spec_with(workload="net.py:Mine"), "code_zip": zipped(net_py=source)})
    assert answer.status_code == 201
    assert int(mark.read_text()) != os.getpid()


def test_a_built_in_workload_takes_no_files(api: InProcess) -> None:
    assert "takes no files" in refused(api, 422, json={**spec_with(), "code_zip": zipped(net_py=MODEL)})


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=15,
)
mutations = st.dictionaries(st.sampled_from([*SPEC, "fixed", "start_with", "search", "stopping", "budget"]), values)
bodies = (
    st.binary(max_size=200)
    | values.map(lambda value: json.dumps(value).encode())
    | mutations.map(lambda changes: json.dumps({"spec": {**SPEC, **changes}}).encode())
    | st.tuples(values, values).map(lambda two: json.dumps({"spec": two[0], "code_zip": two[1]}).encode())
)


@pytest.mark.full
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=bodies)
def test_any_body_is_a_study_or_a_client_error_that_stores_nothing(api: InProcess, body: bytes) -> None:
    before = api.store.events.last_id()
    answer = api.post("/v1/studies", content=body, headers=JSON)
    if answer.status_code == 201:
        assert api.get(answer.headers["location"]).status_code == 200
        return
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.json()["detail"]
    assert api.store.events.last_id() == before
