"""Drawn programs are programs, and the same ones for the same number."""

from __future__ import annotations

import ast

from benchmarks.curves.programs import program


def test_every_number_has_a_program_of_its_own() -> None:
    texts = [program(number) for number in range(300)]
    assert all(ast.parse(text) for text in texts) and texts[7] == program(7)
    assert len(set(texts)) > 280
    for word in ("weight=WEIGHTS)", "register_hook", "self.share *", "self.mean.mul_", "self.tick()", "step >="):
        assert any(word in text.split("class Program")[1].split("def evaluate")[1] for text in texts), word
