"""Every capability is on all four faces, and everything on a face is a capability or stands apart with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import typer

from benchmarks.facing.capabilities import APART, CAPABILITIES, STATIC, Capability, page
from scamp.accounts import Tokens, Users
from scamp.client import Client
from scamp_service.cli.main import app
from tests.services.serving import InProcess, settings_in

ROOT = STATIC.parent


def apart(face: str) -> set[str]:
    return {name for names, _ in APART[face] for name in names.replace(",", "").split()}


def commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in getattr(group, "commands", {}).items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def methods() -> set[str]:
    parts = {"": Client, "users.": Users, "tokens.": Tokens}
    return {f"{part}{name}" for part, kind in parts.items() for name in vars(kind) if not name.startswith("_")}


def test_there_are_many_capabilities_and_all_are_on_each_face() -> None:
    assert len(CAPABILITIES) >= 40 and len({each.name for each in CAPABILITIES}) == len(CAPABILITIES)
    assert [each.name for each in CAPABILITIES if not each.has_all] == []


def test_every_operation_is_a_capability(tmp_path: Path) -> None:
    with closing(InProcess(settings_in(tmp_path))) as api:
        document = api.get("/openapi.json").json()
    operations = {operation["operationId"] for path in document["paths"].values() for operation in path.values()}
    assert {name for each in CAPABILITIES for name in each.operations.split()} == operations - apart("operations")


def test_every_method_is_a_capability() -> None:
    assert {name for each in CAPABILITIES for name in each.methods.split()} == methods() - apart("methods")


def test_every_command_is_a_capability_and_has_the_options_that_are_named() -> None:
    by_name = dict(commands(typer.main.get_command(app)))
    seen = set()
    for each in CAPABILITIES:
        for words in each.commands.split(", "):
            name, _, option = words.partition(" --")
            seen.add(name)
            options = {flag for parameter in by_name[name].params for flag in parameter.opts}
            assert not option or f"--{option}" in options, words
    assert seen == by_name.keys() - apart("commands")


@pytest.mark.parametrize("capability", CAPABILITIES, ids=lambda each: each.name)
def test_the_dashboard_has_every_capability(capability: Capability) -> None:
    assert capability.place
    assert capability.place.text in (STATIC / capability.place.file).read_text()


def test_the_page_is_that_of_the_table() -> None:
    assert (ROOT / "docs/faces.md").read_text() == page()
