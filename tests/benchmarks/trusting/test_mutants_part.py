"""Each mutant changes text that is in its file, and the tests that should notice exist."""

from __future__ import annotations

import pytest

from benchmarks.trusting.mutants_part import MUTANTS, ROOT, Case


@pytest.mark.parametrize("case", MUTANTS, ids=str)
def test_what_a_mutant_changes_is_in_its_file_and_its_tests_exist(case: Case) -> None:
    assert case.before in (ROOT / case.file).read_text()
    assert all((ROOT / test).exists() for test in case.tests)
