"""Imports without an optional part of a library, and without garbage collections."""

from __future__ import annotations

import gc
import importlib
import sys

import pytest

from scamp.lean_imports import uncollected, without


def test_a_module_is_missing_meanwhile_unless_it_was_imported_before() -> None:
    with without("antigravity"), pytest.raises(ImportError):
        importlib.import_module("antigravity")
    assert "antigravity" not in sys.modules
    with without("sys"):
        assert importlib.import_module("sys") is sys


def test_garbage_is_collected_again_after_imports() -> None:
    with uncollected():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.unfreeze()
