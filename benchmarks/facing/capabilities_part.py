"""Every capability on every face: whether what ``capabilities`` names is really there."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from benchmarks.facing.capabilities import CAPABILITIES, STATIC, Capability
from scamp.accounts import Tokens, Users
from scamp.client import Client
from scamp_service.cli.main import app
from tests.services.serving import InProcess, settings_in

TITLE = "Capabilities"
HEADER = ("capabilities", "not there", "face")
ABOUT = """\
The capabilities of [this table](../faces.md), on each face. One is there if all its operations are in the OpenAPI
document, all its methods on `scamp.Client`, all its commands with their options in `scamp`, its place on a page."""
FACES = ("REST", "Python", "command line", "dashboard")


@dataclass(frozen=True, slots=True)
class Result:
    """Capabilities that one face should have, and those that it lacks."""

    num: int
    absent: list[str]

    def row(self) -> list[str]:
        return [str(self.num), ", ".join(self.absent) or "none"]


def cases(quick: bool, seed: int) -> Sequence[str]:
    return FACES


def figures(results: Sequence[Result]) -> Mapping[str, Any]:
    """The number of capabilities, and the share in percent of those on all faces."""
    absent = {name for result in results for name in result.absent}
    return {"capabilities": len(CAPABILITIES), "parity_pct": 100.0 * (1 - len(absent) / len(CAPABILITIES))}


def measure(case: str, seconds: float) -> Result:
    return Result(len(CAPABILITIES), absent_on(case))


def absent_on(face: str) -> list[str]:
    """Names of the capabilities that a face does not have."""
    match face:
        case "REST":
            ids = operations()
            return [each.name for each in CAPABILITIES if not _all_in(each.operations.split(), ids)]
        case "Python":
            return [each.name for each in CAPABILITIES if not _all_in(each.methods.split(), methods())]
        case "command line":
            flags = flags_by_command()
            return [each.name for each in CAPABILITIES if not _has_commands(each, flags)]
    return [each.name for each in CAPABILITIES if not _is_on_page(each)]


def operations() -> set[str]:
    """Ids of the operations in the OpenAPI document."""
    with tempfile.TemporaryDirectory() as folder, closing(InProcess(settings_in(Path(folder)))) as api:
        document = api.get("/openapi.json").json()
    return {operation["operationId"] for path in document["paths"].values() for operation in path.values()}


def methods() -> set[str]:
    """Public methods of ``Client`` and its parts."""
    parts = {"": Client, "users.": Users, "tokens.": Tokens}
    return {f"{part}{name}" for part, kind in parts.items() for name in vars(kind) if not name.startswith("_")}


def flags_by_command() -> dict[str, set[str]]:
    """Command → its options."""
    commands = dict(_commands(typer.main.get_command(app)))
    return {name: {flag for option in command.params for flag in option.opts} for name, command in commands.items()}


def _commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def _all_in(names: Sequence[str], present: set[str]) -> bool:
    return bool(names) and present.issuperset(names)


def _has_commands(capability: Capability, flags: Mapping[str, set[str]]) -> bool:
    words = [each.partition(" --") for each in capability.commands.split(", ")]
    return all(name in flags and (not option or f"--{option}" in flags[name]) for name, _, option in words)


def _is_on_page(capability: Capability) -> bool:
    place = capability.place
    return place is not None and place.text in (STATIC / place.file).read_text()
