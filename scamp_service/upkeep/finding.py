"""Answers of the doctor. A check returns what is well, or raises ``Doubt`` or the error with which a start fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from scamp_service.errors import ScampError


class Level(StrEnum):
    """How serious a finding is. An error keeps the service, or its trials, from starting."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


class Doubt(Exception):
    """Something that lets the service start, but will cause trouble; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer of one check, in a sentence that says what to do if something is wrong."""

    name: str
    level: Level
    words: str


def finding(name: str, check: Callable[[], str]) -> Finding:
    """The answer of ``check``. A check that fails itself is a warning, so that the others still answer."""
    try:
        return Finding(name, Level.OK, check())
    except Doubt as doubt:
        return Finding(name, Level.WARNING, str(doubt))
    except ScampError as error:
        return Finding(name, Level.ERROR, str(error))
    except Exception as error:
        return Finding(name, Level.WARNING, f"this cannot be checked ({type(error).__name__}: {error})")
