"""A loaded checkpoint is what was saved, under any plan."""

from __future__ import annotations

import enum
import io
import os
import pickle
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from estimators.model import Layout
from scamp import SplitSGD
from workloads.models.vit_digits import VitDigits
from workloads.refusals import WorkloadError
from workloads.training.checkpoints import checkpoint
from workloads.training.checkpoints.intact import newest_intact
from workloads.training.checkpoints.name import CheckpointName
from workloads.training.checkpoints.safe_reader import SafeReader
from workloads.training.faults import StorageFault
from workloads.training.updates.update import averages_of, make_optimizer


def at(step: int) -> CheckpointName:
    return CheckpointName(7, step)


def trained(
    optimizer_class: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW, steps: int = 3, seed: int = 0
) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    dtype = torch.bfloat16 if optimizer_class is SplitSGD else torch.float32
    optimizer = optimizer_class(model.to(dtype).parameters(), lr=1e-2)
    for _ in range(steps):
        model(torch.randn(16, 4).to(dtype)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


@pytest.mark.parametrize(
    "optimizer_class", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad, torch.optim.NAdam, SplitSGD]
)
def test_what_was_saved_is_what_is_loaded(
    tmp_path: Path, optimizer_class: Callable[..., torch.optim.Optimizer]
) -> None:
    model, optimizer = trained(optimizer_class)
    optimizer.param_groups[0]["lr"] = 0.125
    checkpoint.save(tmp_path, at(3), model, optimizer)
    other, fresh = trained(optimizer_class, steps=0, seed=1)
    checkpoint.load(tmp_path, at(3), other, fresh)
    assert all(value.equal(other.state_dict()[name]) for name, value in model.state_dict().items())
    saved, loaded = optimizer.state_dict(), fresh.state_dict()
    assert loaded["param_groups"] == saved["param_groups"]
    assert loaded["state"].keys() == saved["state"].keys()
    for position, state in saved["state"].items():
        for field, value in state.items():
            assert bits(loaded["state"][position][field]).equal(bits(value)), field


def bits(value: Any) -> torch.Tensor:
    """The bytes of a state: halves of weights, as numbers, may be none."""
    return torch.atleast_1d(torch.as_tensor(value)).view(torch.uint8)


def test_a_copy_of_another_trial_keeps_the_options_of_its_own_optimizer(tmp_path: Path) -> None:
    model, optimizer = trained()
    checkpoint.save(tmp_path, at(3), model, optimizer)
    other, fresh = trained(steps=0, seed=1)
    fresh.param_groups[0]["lr"] = 0.25
    checkpoint.load(tmp_path, at(3), other, fresh, with_options=False)
    assert fresh.param_groups[0]["lr"] == 0.25
    assert all(value.equal(other.state_dict()[name]) for name, value in model.state_dict().items())
    assert [len(state) for state in fresh.state.values()] == [len(state) for state in optimizer.state.values()]


class Noted(torch.optim.SGD):
    """Keeps a state whose name contains a slash."""

    def step(self, closure: Any = None) -> Any:
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["a/b"] = parameter.detach() * 2


@pytest.mark.parametrize("optimizer_class", [torch.optim.AdamW, Noted])
def test_names_may_contain_slashes_and_other_characters(
    tmp_path: Path, optimizer_class: Callable[..., torch.optim.Optimizer]
) -> None:
    def built(seed: int) -> tuple[nn.ModuleDict, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        names = ["a/b", "a", "b/exp_avg", "100%", "%2F", "two words", "größe", "optimizer", "optimizer/a", "model/"]
        model = nn.ModuleDict({name: nn.Linear(2, 2) for name in names})
        optimizer = optimizer_class(model.parameters(), lr=0.1)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        return model, optimizer

    model, optimizer = built(0)
    optimizer.step()
    checkpoint.save(tmp_path, at(1), model, optimizer)
    other, fresh = built(1)
    checkpoint.load(tmp_path, at(1), other, fresh)
    assert all(value.equal(other.state_dict()[name]) for name, value in model.state_dict().items())
    saved, loaded = optimizer.state_dict()["state"], fresh.state_dict()["state"]
    assert loaded.keys() == saved.keys() and len(loaded) == 20
    for position, state in saved.items():
        assert loaded[position].keys() == state.keys()
        assert all(loaded[position][field].equal(value) for field, value in state.items())


def test_loading_goes_into_the_memory_of_the_model(tmp_path: Path) -> None:
    model, optimizer = trained()
    checkpoint.save(tmp_path, at(1), model, optimizer)
    places = [parameter.data_ptr() for parameter in model.parameters()]
    checkpoint.load(tmp_path, at(1), model, optimizer)
    assert [parameter.data_ptr() for parameter in model.parameters()] == places


def test_the_last_two_up_to_this_step_are_kept_and_later_ones_are_left_alone(tmp_path: Path) -> None:
    for step in (40, 10, 20, 30):
        checkpoint.save(tmp_path, at(step), *trained())
    assert sorted(path.name for path in (tmp_path / "7").iterdir()) == ["step-20", "step-30", "step-40"]
    assert checkpoint.exists(tmp_path, at(30)) and not checkpoint.exists(tmp_path, at(10))
    assert not checkpoint.exists(tmp_path / "never", at(100))


def test_a_checkpoint_that_a_trial_may_resume_from_is_kept(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40, 50):
        checkpoint.save(tmp_path, at(step), *trained(), needed={at(10)})
    assert sorted(path.name for path in (tmp_path / "7").iterdir()) == ["step-10", "step-40", "step-50"]


def test_what_a_killed_rank_has_left_does_not_exist_and_is_removed_by_the_next_one(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, at(10), *trained())
    (tmp_path / "7" / "step-10").rename(tmp_path / "7" / ".step-10-0123.tmp")
    assert not checkpoint.exists(tmp_path, at(10))
    checkpoint.save(tmp_path, at(20), *trained())
    assert [path.name for path in (tmp_path / "7").iterdir()] == ["step-20"]


@pytest.fixture
def full_disk() -> Iterator[None]:
    """The system refuses to write any file beyond 1 KB, as it would refuse any byte on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_checkpoint_that_cannot_be_written_is_a_fault_of_the_storage_and_leaves_nothing(
    tmp_path: Path, full_disk: None
) -> None:
    with pytest.raises(StorageFault, match=r"the checkpoint of step 10 cannot be written to .*: File too large"):
        checkpoint.save(tmp_path, at(10), *trained())
    assert not list((tmp_path / "7").iterdir())


def test_a_checkpoint_that_cannot_be_read_is_a_fault_of_the_storage(tmp_path: Path) -> None:
    model, optimizer = trained()
    checkpoint.save(tmp_path, at(10), model, optimizer)
    for shard in (tmp_path / "7" / "step-10").glob("*.distcp"):
        shard.unlink()
    with pytest.raises(StorageFault, match=r"the checkpoint of step 10 cannot be read from .*: No such file"):
        checkpoint.load(tmp_path, at(10), model, optimizer)


@pytest.mark.parametrize("name", ["*.distcp", ".metadata", "scalars.json"])
@pytest.mark.parametrize("left", [b"", b"garbage"])
def test_a_damaged_checkpoint_is_a_fault_of_the_storage(tmp_path: Path, name: str, left: bytes) -> None:
    model, optimizer = trained()
    checkpoint.save(tmp_path, at(10), model, optimizer)
    for file in (tmp_path / "7" / "step-10").glob(name):
        file.write_bytes(left)
    with pytest.raises(StorageFault, match=r"checkpoint of step 10 cannot be read from .*: a file in it is damaged"):
        checkpoint.load(tmp_path, at(10), model, optimizer)


def flip(file: Path, index: int) -> None:
    content = bytearray(file.read_bytes())
    content[index] ^= 1
    file.write_bytes(content)


def test_a_flipped_bit_is_found_and_an_older_checkpoint_is_used(tmp_path: Path) -> None:
    model, optimizer = trained()
    for step in (10, 20, 30):
        checkpoint.save(tmp_path, at(step), model, optimizer, needed=[at(10)])
    assert newest_intact(tmp_path, at(30)) == (at(30), "")
    (shard,) = (tmp_path / "7" / "step-30").glob("*.distcp")
    flip(shard, shard.stat().st_size // 2)
    (tmp_path / "7" / "step-20").rename(tmp_path / "8")  # another trial's checkpoint takes its place
    checkpoint.save(tmp_path, CheckpointName(9, 20), model, optimizer)
    (tmp_path / "9" / "step-20").rename(tmp_path / "7" / "step-20")
    intact, why = newest_intact(tmp_path, at(30))
    assert intact == at(10)
    assert f"{shard.name} has another checksum than what was written" in why
    assert "it is that of step 20 of trial 9" in newest_intact(tmp_path, at(20))[1]
    with pytest.raises(StorageFault, match="another checksum"):
        checkpoint.load(tmp_path, at(30), model, optimizer)
    with pytest.raises(StorageFault, match="another checksum"):
        checkpoint.load_weights(tmp_path / "7" / "step-30")
    checkpoint.save(tmp_path, at(30), model, optimizer, needed=[at(10)])  # after a resume from an older one
    assert newest_intact(tmp_path, at(30)) == (at(30), "")
    flip(tmp_path / "7" / "step-10" / "scalars.json", 3)
    with pytest.raises(StorageFault, match="it is that of step 20 of trial 9; no older one is intact"):
        newest_intact(tmp_path, at(20))


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, at(10), *trained())
    other = nn.Linear(3, 5)
    with pytest.raises(WorkloadError, match=r"step-10 in .* is of another model: weight is \[5, 3\] here, and the"):
        checkpoint.load(tmp_path, at(10), other, torch.optim.AdamW(other.parameters()))


def test_a_step_that_is_committed_already_is_kept(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, at(10), *trained())
    before = (tmp_path / "7" / "step-10").stat().st_ino
    checkpoint.save(tmp_path, at(10), *trained())
    assert (tmp_path / "7" / "step-10").stat().st_ino == before
    assert len(list((tmp_path / "7").iterdir())) == 1


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_a_checkpoint_cannot_run_code(tmp_path: Path) -> None:
    model, optimizer = trained()
    checkpoint.save(tmp_path, at(1), model, optimizer)
    (tmp_path / "7" / "step-1" / ".metadata").write_bytes(pickle.dumps(Evil(tmp_path / "harm")))
    (tmp_path / "7" / "step-1" / "sums.json").unlink()  # whoever writes one file may write the other
    with pytest.raises(StorageFault, match=r"is damaged: UnpicklingError .* has no place in a checkpoint"):
        checkpoint.load(tmp_path, at(1), model, optimizer)
    assert not (tmp_path / "harm").exists()


def test_an_index_may_name_members_of_enumerations_as_the_first_pythons_of_3_11_do(tmp_path: Path) -> None:
    model, optimizer = trained()
    folder = checkpoint.save(tmp_path, at(1), model, optimizer)
    index = folder / ".metadata"
    read = pickle.loads(index.read_bytes())

    class AsGetattr(pickle.Pickler):
        def reducer_override(self, value: Any) -> Any:
            return (getattr, (type(value), value.name)) if isinstance(value, enum.Enum) else NotImplemented

    written = io.BytesIO()
    AsGetattr(written).dump(read)
    assert b"getattr" in written.getvalue()
    index.write_bytes(written.getvalue())
    assert SafeReader(folder).read_metadata().state_dict_metadata == read.state_dict_metadata


@pytest.mark.parametrize("trap", ["a name elsewhere", "fifo", "link"])
def test_weights_are_read_from_files_of_the_checkpoint_alone(tmp_path: Path, trap: str) -> None:
    """Its index may name any file of the host, and its files may lead there."""
    model, optimizer = trained()
    folder = checkpoint.save(tmp_path, at(1), model, optimizer)
    (folder / "sums.json").unlink()
    (shard,) = folder.glob("*.distcp")
    elsewhere = tmp_path / "elsewhere.distcp"
    shard.rename(elsewhere)
    if trap == "a name elsewhere":
        index = pickle.loads((folder / ".metadata").read_bytes())
        for entry in index.storage_data.values():
            entry.relative_path = str(elsewhere)
        (folder / ".metadata").write_bytes(pickle.dumps(index))
    elif trap == "fifo":
        os.mkfifo(shard)
    else:
        shard.symlink_to(elsewhere)
    with pytest.raises(StorageFault, match=r"its name leads out of its folder|it is no plain file|it is a link"):
        checkpoint.load_weights(folder)


def test_an_older_checkpoint_takes_the_place_of_one_with_a_trap(tmp_path: Path) -> None:
    model, optimizer = trained()
    for step in (10, 20):
        folder = checkpoint.save(tmp_path, at(step), model, optimizer)
    (shard,) = folder.glob("*.distcp")
    shard.unlink()
    os.mkfifo(shard)
    intact, why = newest_intact(tmp_path, at(20))
    assert intact == at(10) and "it is no plain file" in why


class Tied(nn.Module):
    """Has a weight with two names, and a buffer that is not part of its state dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 3), nn.Linear(3, 5)
        self.head.weight = self.embed.weight
        self.register_buffer("mask", torch.ones(2), persistent=False)
        self.again = self.head


def test_weights_are_the_state_dictionary_of_the_model(tmp_path: Path) -> None:
    model = Tied()
    folder = checkpoint.save(tmp_path, at(1), model, torch.optim.SGD(model.parameters()))
    weights = checkpoint.load_weights(folder).state
    assert weights.keys() == model.state_dict().keys()
    Tied().load_state_dict(weights)
    assert all(value.equal(weights[name]) for name, value in model.state_dict().items())


def test_a_copy_of_a_trial_without_averages_of_buffers_begins_them_with_its_buffers(tmp_path: Path) -> None:
    def made(**params: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
        return model, make_optimizer(VitDigits({"ema_decay": 0.5, **params}), model, Layout(), None, 10)

    model, optimizer = made()
    model(torch.randn(16, 4)).square().mean().backward()
    optimizer.step()
    checkpoint.save(tmp_path, at(1), model, optimizer)
    copy, copys = made(average_buffers=True)
    checkpoint.load(tmp_path, at(1), copy, copys, with_options=False)
    loaded = copy.get_buffer("1.running_mean").clone()
    assert torch.equal(loaded, model.get_buffer("1.running_mean"))
    copy(torch.randn(16, 4)).square().mean().backward()
    copys.step()
    averages = averages_of(copy)
    assert torch.allclose(averages[copy.get_buffer("1.running_mean")], (loaded + copy.get_buffer("1.running_mean")) / 2)
