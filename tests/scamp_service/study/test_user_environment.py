from __future__ import annotations

import pytest

from scamp_service.study.user_environment import user_environment

GIVEN = {"PATH": "/bin", "LC_ALL": "C", "OMP_NUM_THREADS": "1", "SCAMP_DATA_DIR": "/data"}
SECRETS = {
    "SCAMP_API_TOKEN": "t", "SCAMP_DATABASE_URL": "u", "AWS_SECRET_ACCESS_KEY": "k", "HF_TOKEN": "h",
    "RAY_AUTH_TOKEN": "r", "RAY_AUTH_TOKEN_PATH": "p", "PGPASSWORD": "w", "https_proxy": "http://u:p@h",
}  # fmt: skip


def test_users_code_reads_what_libraries_need_and_no_secret() -> None:
    assert user_environment(GIVEN | SECRETS) == GIVEN


@pytest.mark.parametrize(("names", "passed"), [("DATASETS", {"DATASETS"}), (" W_*, DATASETS", {"DATASETS", "W_1"})])
def test_further_variables_are_passed_by_name(names: str, passed: set[str]) -> None:
    given = {"DATASETS": "/d", "W_1": "1", "OTHER": "o", "SCAMP_PASS_ENVIRONMENT": names}
    assert set(user_environment(given)) == {*passed, "SCAMP_PASS_ENVIRONMENT"}
