"""Everything on a face is a capability or stands apart with the reason, and the page is that of the table."""

from __future__ import annotations

from benchmarks.facing.capabilities import APART, CAPABILITIES, STATIC, page
from benchmarks.facing.capabilities_part import flags_by_command, methods, operations


def apart(face: str) -> set[str]:
    return {name for names, _ in APART[face] for name in names.replace(",", "").split()}


def test_every_operation_method_and_command_is_a_capability_or_stands_apart() -> None:
    assert {name for each in CAPABILITIES for name in each.operations.split()} == operations() - apart("operations")
    assert {name for each in CAPABILITIES for name in each.methods.split()} == methods() - apart("methods")
    commands = {words.partition(" --")[0] for each in CAPABILITIES for words in each.commands.split(", ")}
    assert commands == flags_by_command().keys() - apart("commands")


def test_the_page_is_that_of_the_table() -> None:
    assert (STATIC.parent / "docs/faces.md").read_text() == page()
