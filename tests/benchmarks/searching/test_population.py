"""Populations that are really trained: the same seed gives the same, and copies continue from their donors."""

from __future__ import annotations

import pytest
import torch

from benchmarks.searching import population
from benchmarks.searching.population import SEARCHES, Member, error_of


@pytest.mark.sample
@pytest.mark.full
def test_members_that_do_badly_continue_as_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(population, "STEPS", 90)
    copies: list[Member] = []

    def copy(donor: Member, *more: object) -> Member:
        member = copied(donor, *more)  # type: ignore[arg-type]
        pairs = zip(member.model.parameters(), donor.model.parameters(), strict=True)
        assert all(torch.equal(weight, other) and weight is not other for weight, other in pairs)
        assert member.trial.params != donor.trial.params and member.trial.step == donor.trial.step
        copies.append(member)
        return member

    copied = population._copy
    monkeypatch.setattr(population, "_copy", copy)
    errors = [error_of(SEARCHES["population based training"], seed=0) for _ in range(2)]
    assert errors[0] == errors[1]
    assert len(copies) == 2 * 2 * 2  # the worst two of eight, after 30 and 60 steps
