"""Drawn programs are programs, the same ones for the same number, and have all parts of the grammar."""

from __future__ import annotations

import ast

from benchmarks.curves import parts
from benchmarks.curves.parts import Part
from benchmarks.curves.programs import program


def test_every_number_has_a_program_of_its_own() -> None:
    texts = [program(number) for number in range(300)]
    assert all(ast.parse(text) for text in texts) and texts[7] == program(7)
    assert len(set(texts)) > 295


def test_every_part_is_drawn() -> None:
    texts = [_without_space(program(number)) for number in range(3000)]
    lists = [value for name, value in vars(parts).items() if name.isupper() and isinstance(value, tuple)]
    for choice in (choice for choices in lists for choice in choices):
        lines = _lines(choice)
        assert any(all(line in text for line in lines) for text in texts), choice


def _lines(choice: Part | str) -> list[str]:
    text = choice if isinstance(choice, str) else "\n".join(choice.values())
    lines = [_without_space(line) for line in text.splitlines()]
    return [line for line in lines if not line.startswith("return") and "LATE" not in line and "LIMIT" not in line]


def _without_space(text: str) -> str:
    return "".join(text.split())
