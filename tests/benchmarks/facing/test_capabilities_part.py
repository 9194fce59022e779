"""Every capability is on all four faces."""

from __future__ import annotations

import pytest

from benchmarks.facing.capabilities import CAPABILITIES
from benchmarks.facing.capabilities_part import FACES, absent_on, figures, measure


@pytest.mark.parametrize("face", FACES)
def test_each_face_has_every_capability(face: str) -> None:
    assert absent_on(face) == []


def test_the_figures_count_what_any_face_lacks() -> None:
    summed = figures([measure(face, 60.0) for face in FACES[1:]])
    assert summed == {"capabilities": len(CAPABILITIES), "parity_pct": 100.0} and len(CAPABILITIES) >= 40
