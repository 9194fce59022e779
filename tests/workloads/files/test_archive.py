"""The zip of a user's files: unpacked whole, or refused with nothing left behind."""

from __future__ import annotations

import io
import stat
import zipfile
from pathlib import Path

import pytest

from scamp.user_code.bundling import MAX_CODE_BYTES
from workloads.files.archive import ArchiveError, unpack_code

SOURCE = "class Mine: ...\n"


def zipped(files: dict[str, bytes | str], mode: int = stat.S_IFREG | 0o644) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            archive.writestr(info, content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def with_a_broken_member(name: str) -> bytes:
    """Its directory can be read, its only file cannot."""
    data = bytearray(zipped({name: SOURCE}))
    data[30 + len(name)] = 0xFF  # the first byte after the local header: no deflate block begins like this
    return bytes(data)


def test_code_is_unpacked_whole(tmp_path: Path) -> None:
    target = tmp_path / "code" / "abc"
    assert unpack_code(zipped({"model.py": SOURCE, "pkg/deep.py": "X = 1"}), target) == target
    assert (target / "pkg/deep.py").read_text() == "X = 1"
    assert [path.name for path in target.parent.iterdir()] == ["abc"]


def test_files_that_the_code_has_removed_or_changed_are_written_again_and_others_left(tmp_path: Path) -> None:
    target, data = tmp_path / "code" / "abc", zipped({"model.py": SOURCE, "pkg/deep.py": "X = 1", "pkg/same.py": ""})
    unpack_code(data, target)
    (target / "model.py").unlink()
    (target / "pkg/deep.py").write_text("X = 2")
    (target / "cache.txt").write_text("mine")
    same = (target / "pkg/same.py").stat().st_ino
    unpack_code(data, target)
    assert (target / "model.py").read_text() == SOURCE and (target / "pkg/deep.py").read_text() == "X = 1"
    assert (target / "cache.txt").read_text() == "mine" and (target / "pkg/same.py").stat().st_ino == same
    assert [path.name for path in target.parent.iterdir()] == ["abc"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (zipped({"../evil.py": ""}), "outside"),
        (zipped({"/etc/evil.py": ""}), "outside"),
        (zipped({"a/../../evil.py": ""}), "outside"),
        (zipped({"a\\..\\evil.py": ""}), "outside"),
        (zipped({"link": "/etc/passwd"}, stat.S_IFLNK | 0o777), "link"),
        (zipped({"pipe": ""}, stat.S_IFIFO | 0o644), "link or special"),
        (b"not a zip", "not a zip"),
        (zipped({"model.py": SOURCE})[:-30], "not a zip"),
        (zipped({"a": "", "a/b": ""}), "two files at 'a/b', or one above it"),
        (zipped({"a": "", "./a": ""}), "two files at 'a', or one above it"),
        (zipped({"a" * 300: ""}), r"not a zip that can be read \(File name too long\): make"),
        (with_a_broken_member("model.py"), "not a zip that can be read"),
    ],
)
def test_a_zip_that_is_broken_or_reaches_outside_leaves_nothing(tmp_path: Path, data: bytes, reason: str) -> None:
    with pytest.raises(ArchiveError, match=reason):
        unpack_code(data, tmp_path / "code")
    assert list(tmp_path.iterdir()) == []


def test_a_zip_of_more_than_is_allowed_leaves_nothing(tmp_path: Path) -> None:
    bomb = zipped({"bomb": bytes(MAX_CODE_BYTES), "more": b"1"})
    with pytest.raises(ArchiveError, match="more than 64 MiB"):
        unpack_code(bomb, tmp_path / "code")
    assert list(tmp_path.iterdir()) == []
