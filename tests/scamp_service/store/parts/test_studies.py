"""How studies are described and found again."""

from __future__ import annotations

import pytest

from scamp_service.access.model import Actor
from scamp_service.errors import NotFound
from scamp_service.lifecycle import StudyState
from scamp_service.store.store import Store
from tests.scamp_service.store.trials import SPEC


@pytest.fixture
def studies(store: Store) -> Store:
    for number, name in enumerate(["Digits 100%", "spirals_a", "spirals b"], 1):
        acting = store.acting(Actor("anna" if number < 3 else "bob"))
        acting.studies.create({**SPEC, "name": name, "project": f"p{number}"}, now=float(number))
    return store


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        ("", [1, 2, 3]),
        ("spirals", [2, 3]),
        ("SPIRALS bob", [3]),
        ("digits spirals", []),
        ("100%", [1]),
        ("s_a", [2]),  # no wildcard
        ("%", [1]),
        ("\\", []),
        ("anna", [1, 2]),
        ("p3", [3]),
        ("baseline", [2]),
        ("grüße", [2]),
    ],
)
def test_studies_are_found_by_each_word(studies: Store, words: str, ids: list[int]) -> None:
    studies.requests.describe(2, {"tags": ["baseline", "a b"], "note": "viele grüße"}, now=9.0)
    assert [study.id for study in studies.studies.page(words=words)] == ids


def test_a_study_is_described_and_everything_else_stays(studies: Store) -> None:
    before = studies.studies.get(1)
    changes = {"name": "renamed", "tags": ["a"], "note": "n", "archived": True}
    studies.acting(Actor("bob")).requests.describe(1, changes, now=9.0)
    after = studies.studies.get(1)
    assert (after.name, after.tags, after.note, after.archived) == ("renamed", ("a",), "n", True)
    assert after.spec == {**before.spec, "name": "renamed"}
    assert (after.owner, after.state, after.created_at) == (before.owner, before.state, before.created_at)
    assert [(entry.action, dict(entry.detail)) for entry in studies.audit.page(actor="bob", study_id=1)] == [
        ("describe", changes)
    ]
    with pytest.raises(NotFound):
        studies.requests.describe(99, {"name": "x"}, now=9.0)


def test_studies_are_chosen_by_tag_state_owner_and_archive(studies: Store) -> None:
    studies.requests.describe(1, {"tags": ["a", "ü"]}, now=9.0)
    studies.requests.describe(2, {"tags": ["ab"], "archived": True}, now=9.0)
    assert studies.studies.move(3, [StudyState.RUNNING], StudyState.STOPPING, now=9.0)

    def ids(**chosen: object) -> list[int]:
        return [study.id for study in studies.studies.page(**chosen)]  # type: ignore[arg-type]

    assert (ids(tag="a"), ids(tag="ü"), ids(tag="b")) == ([1], [1], [])
    assert (ids(archived=True), ids(archived=False)) == ([2], [1, 3])
    assert ids(states=[StudyState.STOPPING]) == [3]
    assert ids(owner="anna", projects=["p2", "p3"]) == [2]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("sort", "ids"),
    [("id", [1, 2, 3]), ("name", [3, 1, 2]), ("owner", [1, 2, 3]), ("project", [1, 2, 3]), ("state", [3, 1, 2])],
)
def test_studies_come_in_pages_in_any_order(studies: Store, sort: str, ids: list[int], reverse: bool) -> None:
    for ended in (1, 2):
        assert studies.studies.move(ended, [StudyState.RUNNING], StudyState.COMPLETED, now=9.0)
    studies.requests.describe(3, {"name": "another"}, now=9.0)
    read: list[int] = []
    while page := studies.studies.page(sort=sort, newest_first=reverse, after=read[-1] if read else 0, limit=1):
        read += [study.id for study in page]
    assert read == (ids[::-1] if reverse else ids)
