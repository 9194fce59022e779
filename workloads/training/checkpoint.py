"""Checkpoints of model, optimizer and step, from which a gang of any size can resume under any plan.

torch.distributed.checkpoint writes tensors, each rank its own shards, and reads them in place; everything else is JSON.
A checkpoint exists once its folder ``step-N`` exists: it is written under another name and renamed when complete. A
folder that cannot be written or read raises ``faults.StorageFault``.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import time
import uuid
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from workloads.parallel.forward_state import forward_state, set_attributes
from workloads.training.faults import StorageFault, storage_error
from workloads.training.retention import outdated

_Value = TypeVar("_Value")

SEEN_SECONDS = 5.0  # how long a network file system may hide a new file from other hosts


def save(
    directory: Path,
    step: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    needed: Collection[int] = (),
) -> Path:
    """Write ``directory/step-N``, delete all checkpoints up to N except the last two, and return the new folder.

    All ranks call it at the same step. All attempts of a trial train the same curve, so an existing ``step-N`` is kept.
    Rank 0 says which other steps are ``needed`` (see ``retention``). Raises ``StorageFault``.
    """
    with _explained(f"the checkpoint of step {step} cannot be written to {directory}"):
        return _save(directory, step, model, optimizer, needed)


def exists(directory: Path, step: int) -> bool:
    """Whether there is a checkpoint of ``step``."""
    return (directory / f"step-{step}" / ".metadata").is_file()


def expect_shared(directory: Path) -> None:
    """Raise ``StorageFault`` on every rank of a gang unless all of them see the same ``directory``.

    Otherwise each host would keep the shards of its own ranks, and no checkpoint would ever be whole. Rank 0 writes a
    file with a random name, and the others look for it.
    """
    marker = directory / _from_rank_0(f".shared-{uuid.uuid4().hex}")
    with _explained(f"the folder {directory} cannot be used for checkpoints"):
        if _rank() == 0:
            directory.mkdir(parents=True, exist_ok=True)
            for forgotten in directory.glob(".shared-*"):  # by a rank 0 that was killed here
                forgotten.unlink()
            marker.touch()
        _barrier()
        num_blind = _count(not _appears(marker))
        if _rank() == 0:
            marker.unlink(missing_ok=True)
    if num_blind:
        raise StorageFault(
            f"ranks do not share the checkpoint folder {directory}: {num_blind} of {dist.get_world_size()} do not see "
            "what rank 0 writes there; set SCAMP_CHECKPOINT_DIR to a folder that all nodes see, such as an NFS mount"
        )


def load(directory: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Read ``step-N`` into ``model`` and ``optimizer``, whichever plan wrote it; all ranks call it.

    Every rank reads its shards straight into its parameters; missing optimizer states are created. Raises
    ``StorageFault``.
    """
    with _explained(f"the checkpoint of step {step} cannot be read from {directory}"):
        _load(directory, step, model, optimizer)


def _save(
    directory: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, needed: Collection[int]
) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    if _rank() == 0:
        _remove_unfinished(directory)  # now, because they may be what fills the disk
    target = directory / f"step-{step}"
    staged = directory / _from_rank_0(f".step-{step}-{uuid.uuid4().hex}.tmp")
    try:
        tensors, scalars = _optimizer_state(model, optimizer)
        attributes = forward_state(model).named_attributes()
        held = {f"attribute/{name}": value for name, value in attributes.items() if isinstance(value, Tensor)}
        state = {**_model_state(model), **tensors, **held}
        with _quiet():
            writer = FileSystemWriter(staged, sync_files=True)
            written = dcp_save(state, storage_writer=writer, no_dist=not dist.is_initialized())
        scalars = _of_all_stages(scalars)
        plain = _of_all_stages({name: value for name, value in attributes.items() if not isinstance(value, Tensor)})
        spread = _of_all_stages({key: True for key, state in tensors.items() if isinstance(state, DTensor)})
        if _rank() == 0:
            _expect_whole(staged, written)
            values = {"step": step, "groups": _group_values(optimizer), "state": scalars, "attributes": plain}
            values["spread"] = list(spread)  # states that were computed from sharded gradients, even single numbers
            _write_json(staged / "scalars.json", values)
            _commit(staged, target)
            for old in outdated(_steps(directory), step, needed):
                _remove(directory, old)
    except BaseException:
        if _rank() == 0:  # the others must not: rank 0 may be about to commit it
            shutil.rmtree(staged, ignore_errors=True)
        raise
    _barrier()
    return target


def _load(directory: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    reader = _SafeReader(directory / f"step-{step}")
    stored = reader.read_metadata().state_dict_metadata
    scalars = json.loads((directory / f"step-{step}" / "scalars.json").read_text())
    own = getattr(optimizer, "own", None)  # parameters whose states only this rank has (``zero1``); None: all
    names = {name: parameter for name, parameter in model.named_parameters() if own is None or parameter in own}
    for key, entry in stored.items():
        if key.startswith("optimizer/") and isinstance(entry, TensorStorageMetadata):
            name, _, field = key.removeprefix("optimizer/").rpartition("/")  # a name may contain slashes
            if name not in names:  # it belongs to another rank
                continue
            optimizer.state[names[name]][field.replace("%2F", "/")] = _empty_state(
                names[name], entry, is_spread=key in scalars.get("spread", ())
            )
    tensors, _ = _optimizer_state(model, optimizer)
    held = {
        key.removeprefix("attribute/"): torch.empty(entry.size, dtype=entry.properties.dtype)
        for key, entry in stored.items()
        if key.startswith("attribute/") and isinstance(entry, TensorStorageMetadata)
    }
    tensors |= {f"attribute/{name}": tensor for name, tensor in held.items()}
    with _quiet():
        dcp_load({**_model_state(model), **tensors}, storage_reader=reader, no_dist=not dist.is_initialized())
    for name, fields in scalars["state"].items():
        if name not in names:
            continue
        optimizer.state[names[name]].update(fields)
    set_attributes(model, {**held, **scalars.get("attributes", {})})
    for number, group in enumerate(optimizer.param_groups):
        for key, value in scalars["groups"][group.get("part_of", number)].items():
            group[key] = tuple(value) if isinstance(group.get(key), tuple) else value


def _model_state(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, including those that ``state_dict`` omits; they share memory with the model."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {f"model/{name}": tensor.detach() for name, tensor in named}


def _optimizer_state(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[dict[str, Tensor], dict[str, dict[str, Any]]]:
    """State tensors by ``optimizer/<parameter name>/<field>``, and other values by parameter name and field."""
    tensors: dict[str, Tensor] = {}
    scalars: dict[str, dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        for field, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"optimizer/{name}/{field.replace('/', '%2F')}"] = value
            elif value is None or isinstance(value, bool | int | float | str):
                scalars.setdefault(name, {})[field] = value
            else:
                raise TypeError(
                    f"optimizer state {field!r} is a {type(value).__name__}, which cannot be checkpointed: keep only "
                    "tensors, numbers, strings or None in the optimizer's state"
                )
    return tensors, scalars


def _empty_state(parameter: nn.Parameter, entry: TensorStorageMetadata, *, is_spread: bool) -> Tensor:
    """Memory for a state tensor: sharded like its parameter if the shapes are equal, else whole (Adam's step count).

    One that was computed from a sharded gradient is a ``DTensor``, as torch combines it with no others. It is sharded
    along the dimensions that it shares with its parameter, as a mean over the other ones is.
    """
    if entry.size == parameter.shape:
        return torch.empty_like(parameter.detach(), dtype=entry.properties.dtype)
    whole = torch.empty(entry.size, dtype=entry.properties.dtype)
    if isinstance(parameter, DTensor) and (whole.ndim or is_spread):
        shared = [size == own for size, own in zip(whole.shape, parameter.shape, strict=False)]
        placements = [
            placement if isinstance(placement, Shard) and shared[placement.dim :][:1] == [True] else Replicate()
            for placement in parameter.placements
        ]
        return distribute_tensor(whole, parameter.device_mesh, placements, src_data_rank=None)
    return whole


def _group_values(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    plain = (bool, int, float, str, tuple, list, type(None))
    return [
        {key: value for key, value in group.items() if key != "params" and isinstance(value, plain)}
        for group in optimizer.param_groups
        if "part_of" not in group  # otherwise it has the values of another group (``tensor_parallel.grouped_by_mesh``)
    ]


class _SafeReader(FileSystemReader):
    """Reads a checkpoint's index but accepts only torch's own classes in it; tensors are read with ``weights_only``."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        with open(Path(self.path) / ".metadata", "rb") as file:
            metadata: Metadata = _SafeUnpickler(file).load()
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class _SafeUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        allowed = module in ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")
        if not (allowed and re.fullmatch(r"_?[A-Z]\w*", name)):
            value = getattr(torch, name, None) if module == "torch" else None
            if (module, name) not in _ALLOWED and not isinstance(value, torch.dtype):
                raise pickle.UnpicklingError(
                    f"{module}.{name} has no place in a checkpoint, so it was not loaded: its files may be damaged or "
                    "altered; restore this checkpoint's folder from a copy, or submit the study again"
                )
        return super().find_class(module, name)


_ALLOWED = {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("pathlib", "PosixPath"),
    ("pathlib", "PurePosixPath"),
    ("collections", "OrderedDict"),
}


def _steps(directory: Path) -> list[int]:
    matches = [re.fullmatch(r"step-(\d+)", path.name) for path in directory.glob("step-*")]
    return sorted(int(match[1]) for match in matches if match)


def _commit(staged: Path, target: Path) -> None:
    if target.exists():
        shutil.rmtree(staged)
    else:
        staged.rename(target)
        _sync(target.parent)


def _remove(directory: Path, step: int) -> None:
    """Delete a checkpoint. It is renamed first, so that a half-deleted one is never taken for a whole one."""
    doomed = directory / f".step-{step}-{uuid.uuid4().hex}.tmp"
    with suppress(OSError):
        (directory / f"step-{step}").rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def _remove_unfinished(directory: Path) -> None:
    """Delete what killed ranks have left. No other attempt of the trial writes here: it would have ended first."""
    for unfinished in directory.glob(".step-*.tmp"):
        shutil.rmtree(unfinished, ignore_errors=True)


def _expect_whole(staged: Path, written: Metadata) -> None:
    """Raise ``StorageFault`` if this rank does not see every file that the ranks have written."""
    named = {entry.relative_path for entry in (written.storage_data or {}).values()}
    missing = named - {path.name for path in staged.iterdir()}
    if missing:
        raise StorageFault(
            f"{len(missing)} of the {len(named)} files of the checkpoint are not in {staged.parent}: the ranks do not "
            "share it; set SCAMP_CHECKPOINT_DIR to a folder that all nodes see"
        )


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turn a failed file operation into a ``StorageFault`` that begins with ``what``."""
    try:
        yield
    except StorageFault:
        raise
    except BaseException as error:  # torch's CheckpointException is not an Exception
        why = storage_error(error)
        if not why:
            raise
        raise StorageFault(f"{what}: {why}") from error


def _appears(file: Path) -> bool:
    deadline = time.monotonic() + SEEN_SECONDS
    while not file.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def _write_json(path: Path, value: Any) -> None:
    with open(path, "w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    """Write the folder itself to disk, without which a rename in it may not survive a crash."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _of_all_stages(scalars: dict[str, _Value]) -> dict[str, _Value]:
    if not dist.is_initialized():
        return scalars
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, scalars)
    return {name: fields for part in parts for name, fields in part.items()}


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _count(mine: bool) -> int:
    """Number of ranks for which ``mine`` is True."""
    total = torch.tensor(int(mine))
    dist.all_reduce(total)
    return int(total)


def _barrier() -> None:
    if dist.is_initialized():
        dist.barrier()


def _from_rank_0(text: str) -> str:
    if not dist.is_initialized():
        return text
    message = torch.tensor(bytearray(text.encode()), dtype=torch.uint8)
    dist.broadcast(message, src=0)
    return bytes(message.tolist()).decode()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the warnings about torch's own deprecated calls inside DCP."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
