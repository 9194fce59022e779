"""Which objects are a checkpoint, and which may go."""

from __future__ import annotations

import json

import pytest

from scamp_service.remote.layout import (
    LONGEST_PAUSE_SECONDS,
    Manifest,
    attempt_of,
    needless,
    pause_seconds,
    whole_ones,
)
from workloads.training.checkpoints.name import CheckpointName

TRIAL = 7


def name(step: int) -> CheckpointName:
    return CheckpointName(TRIAL, step)


def manifest(step: int, tag: str) -> Manifest:
    return Manifest(name(step), tag, {"a": 1}, {"a": 10})


def test_a_manifest_is_read_as_it_was_written() -> None:
    written = Manifest(name(5), "3-abc", {"a": 1, ".metadata": 2}, {"a": 10, ".metadata": 20}, {"steps": 4})
    assert Manifest.of(written.encoded(), name(5)) == written
    assert attempt_of(written.tag) == 3


@pytest.mark.parametrize(
    "changes",
    [
        {"step": 6},
        {"trial_id": 8},
        {"crc32": {"a": 1, "b": 2}},
        {"crc32": {"../a": 1}, "bytes": {"../a": 10}},
        {"tag": "../../other/step-1/1-x"},
        {"tag": "x"},
        {"bytes": None},
    ],
)
def test_a_manifest_that_is_not_that_of_the_checkpoint_is_none(changes: dict[str, object]) -> None:
    values = {**manifest(5, "1-x").to_json(), **changes}
    assert Manifest.of(json.dumps(values).encode(), name(5)) is None


def test_half_a_manifest_is_none() -> None:
    data = manifest(5, "1-x").encoded()
    assert Manifest.of(data, name(5)) is not None
    assert all(Manifest.of(data[:end], name(5)) is None for end in range(len(data)))


def test_a_file_is_missing_until_it_is_there_with_its_size() -> None:
    assert manifest(5, "1-x").missing({}) == ["a"]
    assert manifest(5, "1-x").missing({"a": 9}) == ["a"]
    assert manifest(5, "1-x").missing({"a": 10, "b": 1}) == []


def stored(*checkpoints: tuple[int, str], with_manifest: bool = True) -> list[str]:
    ends = [f"step-{step}/manifest.json" for step, _ in checkpoints] if with_manifest else []
    return [f"step-{step}/{tag}/a" for step, tag in checkpoints] + ends


def test_checkpoints_with_a_manifest_are_whole() -> None:
    objects = [
        *stored((5, "1-x"), (10, "1-y")),
        *stored((15, "1-z"), with_manifest=False),
        "files/step-1/manifest.json",
    ]
    assert whole_ones(TRIAL, objects) == [name(5), name(10)]


def test_the_last_two_and_the_needed_ones_stay() -> None:
    objects = stored((5, "1-a"), (10, "1-b"), (15, "1-c"), (20, "1-d"), (25, "1-e"))
    assert needless(manifest(20, "1-d"), objects, [name(5)], []) == ["step-10"]


def test_files_without_a_manifest_go_once_a_later_checkpoint_is_whole() -> None:
    objects = [*stored((5, "1-a"), (15, "2-c")), *stored((10, "1-b"), (20, "1-d"), with_manifest=False)]
    assert needless(manifest(15, "2-c"), objects, [], []) == ["step-10/1-b"]
    assert needless(manifest(15, "2-c"), objects, [], [name(10)]) == []
    assert needless(manifest(15, "2-c"), objects, [name(10)], []) == []


def test_files_of_another_save_of_the_same_step_go() -> None:
    objects = [*stored((5, "2-new")), *stored((5, "1-old"), with_manifest=False)]
    assert needless(manifest(5, "2-new"), objects, [], []) == ["step-5/1-old"]


def test_pauses_double_up_to_a_minute() -> None:
    pauses = [pause_seconds(num) for num in range(1, 20)]
    assert pauses[:4] == [1.0, 2.0, 4.0, 8.0]
    assert pauses[-1] == LONGEST_PAUSE_SECONDS
