"""Copies of checkpoints on a real S3 server: whole or not there, of one save, and no longer than needed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from scamp_service.errors import InvalidInput, Refused, Unavailable
from scamp_service.remote.copies import Copies, NotStored, Pushed, expect_storage, probe, stored_at
from scamp_service.remote.objects import Objects
from scamp_service.settings import Settings
from tests.services.s3 import BUCKET, KEY, SECRET, ObjectStorage
from workloads.files.sums import sum_of
from workloads.training.checkpoints.name import CheckpointName

TRIAL = 7
FIRST, SECOND, THIRD, FOURTH = (CheckpointName(TRIAL, step) for step in (5, 10, 15, 20))


@pytest.fixture
def here(storage: ObjectStorage, tmp_path: Path) -> Copies:
    return Copies(Objects(storage.url), tmp_path / "here")


@pytest.fixture
def there(storage: ObjectStorage, tmp_path: Path) -> Copies:
    return Copies(Objects(storage.url), tmp_path / "there")


def write(
    copies: Copies,
    name: CheckpointName,
    tag: str = "1-a",
    *,
    other: Mapping[str, bytes] = MappingProxyType({}),
    more: Mapping[str, bytes] = MappingProxyType({}),
) -> dict[str, bytes]:
    """Write a checkpoint as ranks do, with ``more`` files. Those of ``other`` hosts are in its sums only."""
    files = {"__0_0.distcp": os.urandom(5000), ".metadata": b"index", "scalars.json": b"{}", **more}
    folder = name.folder(copies.root)
    folder.mkdir(parents=True)
    for file, data in files.items():
        (folder / file).write_bytes(data)
    sums = {file: sum_of(folder, file) for file in files}
    for file, data in other.items():
        (folder / file).write_bytes(data)
        sums[file] = sum_of(folder, file)
        (folder / file).unlink()
    values = {
        "trial_id": name.trial_id,
        "step": name.step,
        "crc32": {file: crc for file, (crc, _) in sums.items()},
        "bytes": {file: size for file, (_, size) in sums.items()},
        "tag": tag,
    }
    (folder / "sums.json").write_text(json.dumps(values))
    return files


def read(copies: Copies, name: CheckpointName) -> dict[str, bytes]:
    folder = name.folder(copies.root)
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in ("sums.json", "next.json")}


def test_a_checkpoint_comes_to_another_host_as_it_was_written(here: Copies, there: Copies) -> None:
    files = write(here, FIRST)
    (FIRST.folder(here.root) / "next.json").write_text('{"steps": 3}')
    assert here.push(FIRST, [], ends=True) is Pushed.DONE
    there.pull(FIRST)
    assert read(there, FIRST) == files
    assert json.loads((FIRST.folder(there.root) / "next.json").read_text()) == {"steps": 3}
    assert there.is_whole_here(FIRST)
    assert [path.name for path in FIRST.folder(there.root).parent.iterdir()] == ["step-5"]


@pytest.mark.full
def test_a_large_file_comes_in_parts(here: Copies, there: Copies) -> None:
    files = write(here, FIRST, more={"__1_0.distcp": os.urandom(2**20) * 60})
    here.push(FIRST, [], ends=True)
    there.pull(FIRST)
    assert read(there, FIRST) == files


def test_half_an_upload_is_never_restored(here: Copies, there: Copies, storage: ObjectStorage) -> None:
    write(here, FIRST)
    here.push(FIRST, [], ends=True)
    storage.files.rm_file(f"{BUCKET}/{storage.prefix}/{TRIAL}/step-5/manifest.json")
    with pytest.raises(NotStored, match="is not in"):
        there.pull(FIRST)
    assert not FIRST.folder(there.root).exists()


def test_an_upload_continues_where_it_was_killed(here: Copies, storage: ObjectStorage) -> None:
    write(here, FIRST)
    here.push(FIRST, [], ends=True)
    for name in ("manifest.json", "1-a/.metadata"):
        storage.files.rm_file(f"{BUCKET}/{storage.prefix}/{TRIAL}/step-5/{name}")
    storage.requests.clear()
    assert here.push(FIRST, [], ends=True) is Pushed.DONE
    assert storage.requests["PUT"] == 2
    assert here.manifest(FIRST) is not None


@pytest.mark.parametrize("file", ["1-a/__0_0.distcp", "1-a/.metadata", "manifest.json"])
def test_a_corrupt_object_is_never_restored_and_the_older_checkpoint_is(
    here: Copies, there: Copies, storage: ObjectStorage, file: str
) -> None:
    files = write(here, FIRST)
    write(here, SECOND)
    for name in (FIRST, SECOND):
        here.push(name, [], ends=True)
    storage.change(f"{TRIAL}/step-10/{file}", lambda data: bytes([data[0] ^ 1]) + data[1:])
    with pytest.raises(NotStored):
        there.pull(SECOND)
    why = there.pull_or_older(SECOND)
    assert "step 10" in why
    assert not SECOND.folder(there.root).exists()
    assert read(there, FIRST) == files


def test_an_object_that_is_cut_off_is_never_restored(here: Copies, there: Copies, storage: ObjectStorage) -> None:
    write(here, FIRST)
    here.push(FIRST, [], ends=True)
    storage.change(f"{TRIAL}/step-5/1-a/__0_0.distcp", lambda data: data[:-1])
    with pytest.raises(NotStored, match=r"__0_0\.distcp has another checksum"):
        there.pull_or_older(FIRST)
    assert list(FIRST.folder(there.root).parent.iterdir()) == []


def test_a_damaged_file_here_is_not_stored(here: Copies) -> None:
    write(here, FIRST)
    (FIRST.folder(here.root) / "scalars.json").write_bytes(b"[]")
    assert here.push(FIRST, [], ends=True) is Pushed.GONE
    assert here.manifest(FIRST) is None


def test_a_link_to_another_file_is_not_stored(here: Copies, storage: ObjectStorage, tmp_path: Path) -> None:
    write(here, FIRST)
    secret, file = tmp_path / "secret", FIRST.folder(here.root) / "scalars.json"
    secret.write_bytes(b"{}")
    file.unlink()
    file.symlink_to(secret)
    assert here.push(FIRST, [], ends=True) is Pushed.GONE
    assert storage.names() == []


def test_a_damaged_file_here_is_replaced_by_the_stored_one(here: Copies) -> None:
    files = write(here, FIRST)
    here.push(FIRST, [], ends=True)
    (FIRST.folder(here.root) / "scalars.json").write_bytes(b"[]")
    here.pull(FIRST)
    assert read(here, FIRST) == files


def test_what_is_here_and_intact_is_not_read_again(here: Copies, storage: ObjectStorage) -> None:
    write(here, FIRST)
    here.push(FIRST, [], ends=True)
    (FIRST.folder(here.root) / "scalars.json").unlink()
    storage.requests.clear()
    here.pull(FIRST)
    assert storage.requests["GET"] == 2  # the manifest and the file


def test_a_checkpoint_of_several_hosts_is_whole_once_all_files_are_there(
    here: Copies, there: Copies, tmp_path: Path
) -> None:
    shard = os.urandom(3000)
    files = write(here, FIRST, other={"__2_0.distcp": shard})
    folder = FIRST.folder(there.root)
    folder.mkdir(parents=True)
    (folder / "__2_0.distcp").write_bytes(shard)
    (folder / "sums.json").write_bytes((FIRST.folder(here.root) / "sums.json").read_bytes())
    assert here.push(FIRST, [], ends=True) is Pushed.WAITS
    assert here.manifest(FIRST) is None
    assert there.push(FIRST, [], ends=False) is Pushed.DONE
    assert here.manifest(FIRST) is None
    assert here.push(FIRST, [], ends=True) is Pushed.DONE
    for copies in (here, there, Copies(here.objects, tmp_path / "third")):
        copies.pull(FIRST)
        assert read(copies, FIRST) == files | {"__2_0.distcp": shard}


def test_files_of_two_saves_never_mix(here: Copies, there: Copies, storage: ObjectStorage) -> None:
    write(here, FIRST, tag="1-a")
    here.push(FIRST, [], ends=True)
    files = write(there, FIRST, tag="2-b")
    there.push(FIRST, [], ends=True)
    assert not [name for name in storage.names() if "1-a" in name]
    here.pull(FIRST)
    assert read(here, FIRST) == files


def test_a_late_upload_does_not_replace_that_of_a_later_attempt(here: Copies, there: Copies) -> None:
    files = write(there, FIRST, tag="2-b")
    there.push(FIRST, [], ends=True)
    write(here, FIRST, tag="1-a")
    assert here.push(FIRST, [], ends=True) is Pushed.GONE
    here.pull(FIRST)
    assert read(here, FIRST) == files


def test_outdated_checkpoints_are_removed_but_for_those_needed(here: Copies, storage: ObjectStorage) -> None:
    for name in (FIRST, SECOND, THIRD, FOURTH):
        write(here, name)
        here.push(name, [FIRST], ends=True)
    steps = {name.split("/")[1] for name in storage.names()}
    assert steps == {"step-5", "step-15", "step-20"}


def test_a_half_upload_is_swept(here: Copies, there: Copies, storage: ObjectStorage) -> None:
    write(there, FIRST, tag="1-lost")
    there.push(FIRST, [], ends=False)  # and then its host is lost
    assert storage.names()
    write(here, SECOND, tag="2-b")
    here.push(SECOND, [], ends=True)
    assert not [name for name in storage.names() if "1-lost" in name]


def test_checkpoints_of_a_forgotten_curve_are_removed(here: Copies) -> None:
    write(here, FIRST, tag="1-a")
    write(here, SECOND, tag="2-b")
    for name in (FIRST, SECOND):
        here.push(name, [], ends=True)
    here.forget(TRIAL, before=2)
    assert here.manifest(FIRST) is None
    assert here.manifest(SECOND) is not None


def test_nothing_is_left_of_a_removed_trial(here: Copies, storage: ObjectStorage) -> None:
    write(here, FIRST)
    here.push(FIRST, [], ends=True)
    other = CheckpointName(70, 5)
    write(here, other)
    here.push(other, [], ends=True)
    here.remove(TRIAL)
    assert {name.split("/")[0] for name in storage.names()} == {"70"}
    here.remove(TRIAL)


def test_a_checkpoint_that_was_removed_here_is_not_stored(here: Copies, storage: ObjectStorage) -> None:
    assert here.push(FIRST, [], ends=True) is Pushed.GONE
    assert storage.names() == []


@pytest.mark.full
@pytest.mark.sample
@pytest.mark.parametrize("status", [403, 500, 503])
def test_an_error_says_what_is_wrong_and_no_secret(
    here: Copies, storage: ObjectStorage, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs

    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    write(here, FIRST)
    storage.refuses = status
    with pytest.raises(Unavailable) as caught:
        here.push(FIRST, [], ends=True)
    text = str(caught.value)
    assert storage.url in text
    assert KEY not in text and SECRET not in text
    assert ("let these credentials" in text) == (status == 403)
    storage.refuses = 0
    assert here.push(FIRST, [], ends=True) is Pushed.DONE


def test_a_bucket_that_is_not_there_is_no_empty_one(storage: ObjectStorage, tmp_path: Path) -> None:
    copies = Copies(Objects("s3://nowhere/a"), tmp_path)
    with pytest.raises(Unavailable, match="create the bucket"):
        copies.manifest(FIRST)
    with pytest.raises(Unavailable, match="create the bucket"):
        probe(copies.objects)


def test_the_storage_is_probed_and_left_as_it_was(here: Copies, storage: ObjectStorage) -> None:
    probe(here.objects)
    assert storage.names() == []


def test_a_library_that_is_missing_is_named() -> None:
    with pytest.raises(InvalidInput, match="install gcsfs with pip"):
        Objects("gs://bucket/a").read("b")


def test_services_share_a_bucket(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, checkpoint_dir="s3://bucket/scamp/")
    assert stored_at(settings, "abcd") == "s3://bucket/scamp/abcd"
    assert settings.checkpoints == tmp_path / "checkpoints"
    assert stored_at(Settings(data_dir=tmp_path), "abcd") == ""


@pytest.mark.parametrize("url", ["ftp://host/a", "s3://", "s3://key:secret@bucket/a", "az://box/a?sig=secret"])
def test_a_url_without_a_bucket_or_with_a_password_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="SCAMP_CHECKPOINT_DIR"):
        Settings(checkpoint_dir=url)


def test_another_user_for_users_code_is_refused_with_object_storage(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, checkpoint_dir="s3://bucket/a")
    expect_storage(settings)
    with pytest.raises(Refused, match="cannot be combined with SCAMP_USER_CODE_USER"):
        expect_storage(settings.model_copy(update={"user_code_user": "nobody"}))
    expect_storage(Settings(data_dir=tmp_path, user_code_user="nobody"))
