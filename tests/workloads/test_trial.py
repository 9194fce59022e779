"""Files that a trial keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from workloads.models.vit_digits import VitDigits
from workloads.trial import TrialContext, kept_files


def names(folder: Path) -> list[str]:
    return [name for name, _ in kept_files(folder.parent, folder.name)]


def test_files_are_kept_by_name_and_the_newest_content_counts(tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    picture.write_bytes(b"png")
    workload = VitDigits({})
    workload.trial = TrialContext(1, 2, 1, 0, 1, tmp_path / "kept")
    workload.artifact("plots/first picture.png", picture)
    workload.artifact("notes.txt", b"old")
    workload.artifact("notes.txt", b"new")
    assert names(tmp_path / "kept") == ["notes.txt", "plots/first picture.png"]
    assert (tmp_path / "kept/notes.txt").read_bytes() == b"new"


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../other", "a/../b", ".hidden", "a\nb", "a" * 300])
def test_other_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name of a file"):
        TrialContext(folder=tmp_path).keep(name, b"")


@pytest.mark.parametrize("name", ["plots", "plots/first/more"])
def test_a_name_is_a_file_or_a_folder(tmp_path: Path, name: str) -> None:
    trial = TrialContext(folder=tmp_path)
    trial.keep("plots/first", b"")
    with pytest.raises(ValueError, match="rename it"):
        trial.keep(name, b"")


def test_a_missing_file_is_named_on_every_rank_and_in_a_dry_run(tmp_path: Path) -> None:
    for trial in (TrialContext(), TrialContext(rank=1, folder=tmp_path)):
        with pytest.raises(ValueError, match=r"no file 'model\.pt' to keep as 'm'"):
            trial.keep("m", "model.pt")


def test_only_rank_0_of_a_real_trial_keeps_files(tmp_path: Path) -> None:
    TrialContext().keep("a", b"")
    TrialContext(rank=1, world_size=2, folder=tmp_path).keep("a", b"")
    assert names(tmp_path) == []
    assert TrialContext(folder=tmp_path).is_real and not TrialContext().is_real
