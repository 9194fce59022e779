"""A study for tests, with changes, and the message with which one is refused."""

from __future__ import annotations

from typing import Any

import pytest

from scamp_service.errors import InvalidInput
from scamp_service.study.parse import parse_study


def study(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "name": "demo",
        "workload": "digits_vit",
        "objective": {"metric": "accuracy"},
        "space": {"lr": {"low": 0.1, "high": 1.0}},
    }
    return {**base, **changes}


def refusal(source: Any) -> str:
    with pytest.raises(InvalidInput) as caught:
        parse_study(source)
    message = str(caught.value)
    assert "\n" not in message and len(message.encode()) < 2000
    return message
