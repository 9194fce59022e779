"""The dashboard's modules that need no browser, in node's own test runner: `javascript/*.test.mjs`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from api.app import create_app
from scamp_service.store.table.order import By
from tests.api.answer_types import FILE as ANSWERS
from tests.api.answer_types import answer_types
from tests.services.serving import settings_in
from tests.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
FILES = sorted((Path(__file__).parent / "javascript").glob("*.test.mjs"))
OLDEST_NODE = 20


@cache
def why_not() -> str:
    """Why the tests cannot run here, or an empty string."""
    if shutil.which("node") is None:
        return "node is not installed"
    version = subprocess.run(
        ["node", "--version"], capture_output=True, text=True, timeout=PATIENCE_SECONDS
    ).stdout.strip()
    match = re.match(r"v(\d+)\.", version)
    is_new = match is not None and int(match[1]) >= OLDEST_NODE
    return "" if is_new else f"node is {version}, and its test runner is needed as it is since {OLDEST_NODE}"


@pytest.mark.full
@pytest.mark.sample
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name.removesuffix(".test.mjs"))
def test_the_modules_of_the_dashboard(file: Path) -> None:
    if why_not():
        pytest.skip(why_not())
    command = ["node", "--test", "--test-reporter=spec", str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert ended.returncode == 0, ended.stdout + ended.stderr


KEYS = """
import { trialColumns } from "./api/static/study/table/columns.js";
console.log(JSON.stringify(trialColumns(1, () => ({})).map((column) => column.key)));
"""


def test_every_column_of_the_trials_table_is_one_that_the_api_sorts_by() -> None:
    if why_not():
        pytest.skip(why_not())
    command = ["node", "--input-type=module", "--eval", KEYS]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert ended.returncode == 0, ended.stderr
    assert sorted(json.loads(ended.stdout)) == sorted(By)


def test_the_types_of_answers_are_those_of_the_api(tmp_path: Path) -> None:
    now = answer_types(create_app(settings_in(tmp_path)).openapi())
    assert ANSWERS.read_text() == now, "run `python -m tests.api.answer_types`"


def test_every_answer_is_a_type_and_so_is_all_that_it_has() -> None:
    page = {"type": "object", "properties": {"items": {"type": "array", "items": {"$ref": "#/x/Item"}}}}
    item = {"properties": {"at": {"anyOf": [{"type": "number"}, {"type": "null"}]}}, "required": ["at"]}
    schemas = {"Page": page, "Item": item, "Sent": {"type": "string"}}
    answer = {"200": {"content": {"application/json": {"schema": {"$ref": "#/x/Page"}}}}}
    written = answer_types({"components": {"schemas": schemas}, "paths": {"/": {"get": {"responses": answer}}}})
    assert "items?: Item[];" in written
    assert "at: number | null;" in written
    assert "Sent" not in written
