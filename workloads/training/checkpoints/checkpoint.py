"""Checkpoints of model, optimizer and step, from which a gang of any size can resume under any plan.

torch.distributed.checkpoint writes tensors, each rank its own shards, and reads them in place; everything else is JSON.
A checkpoint exists once its folder exists: it is written under another name and renamed when complete. A folder that
cannot be written or read raises ``faults.StorageFault``. ``root`` is the folder with the checkpoints of all trials.
"""

from __future__ import annotations

import shutil
import uuid
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from workloads.files.untrusted import open_plain
from workloads.parallel.optimizers.zero1 import ZeroOptimizer
from workloads.refusals import WorkloadError
from workloads.training.checkpoints import outbox
from workloads.training.checkpoints.agreed import Place, barrier, from_rank_0, of_all_stages, place_of, rank
from workloads.training.checkpoints.chunks import in_chunks
from workloads.training.checkpoints.folders import (
    commit,
    expect_whole,
    explained,
    read_json,
    remove,
    remove_unfinished,
    unfinished,
    write_json,
)
from workloads.training.checkpoints.intact import damage, expect_intact, write_sums
from workloads.training.checkpoints.kept import Kept
from workloads.training.checkpoints.name import CheckpointName, written_checkpoints
from workloads.training.checkpoints.retention import outdated
from workloads.training.checkpoints.safe_reader import SafeReader
from workloads.training.faults import StorageFault
from workloads.training.updates.update import averages_of, previous_gradients_of, updates_of

_AVERAGE = "average/"
_KEPT = "kept.pt"
NOTHING_KEPT: Kept = {}


def save(
    root: Path,
    checkpoint: CheckpointName,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    needed: Collection[CheckpointName] = (),
    kept: Kept = NOTHING_KEPT,
    mirrored_attempt: int | None = None,
) -> Path:
    """Write a checkpoint, delete all earlier ones of the trial except the last two, and return its folder.

    All ranks call it at the same step. All attempts of a trial train the same curve, so an existing checkpoint is kept.
    Rank 0 says which other checkpoints are ``needed`` (see ``retention``). Checkpoints of a ``mirrored_attempt`` may be
    spread over the folders of several hosts (see ``outbox``), of which all but rank 0's are pushed here. Raises
    ``StorageFault``.
    """
    target = checkpoint.folder(root)
    with explained(f"the checkpoint of step {checkpoint.step} cannot be written to {target.parent}"):
        place = _save(root, checkpoint, model, optimizer, kept, mirrored_attempt)
        if place.is_spread:
            needed = of_all_stages({"needed": list(needed)} if rank() == 0 else {})["needed"]
        if place.leads:
            for old in outdated(written_checkpoints(root, checkpoint.trial_id), checkpoint, needed):
                remove(old.folder(root))
            if rank() != 0:
                outbox.push(root, checkpoint, (), ends=False)
        barrier()
    return target


def exists(root: Path, checkpoint: CheckpointName) -> bool:
    """Whether there is such a checkpoint."""
    return (checkpoint.folder(root) / ".metadata").is_file()


def load(
    root: Path,
    checkpoint: CheckpointName,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    with_options: bool = True,
    is_checked: bool = False,
) -> Kept:
    """Read a checkpoint into ``model`` and ``optimizer``, whichever plan wrote it; all ranks call it.

    Every rank reads its shards straight into its parameters; missing optimizer states are created. The optimizer's
    options, such as the learning rate, are also read ``with_options``. Its checksums are compared, unless it
    ``is_checked``. Raises ``StorageFault``, and ``WorkloadError`` for a checkpoint of another model.
    """
    folder = checkpoint.folder(root)
    with explained(f"the checkpoint of step {checkpoint.step} cannot be read from {folder.parent}"):
        if not is_checked:
            expect_intact(folder, checkpoint)
        return _load(folder, model, optimizer, with_options)


def progress_at(root: Path, checkpoint: CheckpointName) -> tuple[int, int] | None:
    """Optimizer steps and samples before a checkpoint of a training with AdaScale; None if it does not say so."""
    try:
        state = read_json(checkpoint.folder(root), "scalars.json")["updates"]["adascale"]
        return (state["num_steps"], state["num_samples"]) if state else None
    except (OSError, ValueError, KeyError):  # loading it, on all ranks together, says why
        return None


@dataclass(frozen=True, slots=True)
class Weights:
    """The whole model's state dictionary after ``step`` steps. ``has_averages``: evaluations used averages."""

    step: int
    state: dict[str, Tensor]
    has_averages: bool

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.state.values())

    def write(self, target: Path) -> None:
        """Write the state dictionary for ``torch.load``."""
        torch.save(self.state, target)


def load_weights(folder: Path, *, raw: bool = False) -> Weights:
    """The weights in the checkpoint at ``folder`` that evaluations used, whichever plan wrote it; in host memory.

    These are averages, where the trial averages. With ``raw`` they are those that train. Raises ``StorageFault`` when
    it cannot be read.
    """
    with explained(f"the checkpoint in {folder} cannot be read"):
        expect_intact(folder)
        reader = SafeReader(folder)
        stored = reader.read_metadata().state_dict_metadata
        own_names = [key.removeprefix("model/") for key in stored if key.startswith("model/")]
        tensors = {}
        for name in own_names:
            entry = stored[_key(name, stored, raw=raw)]
            assert isinstance(entry, TensorStorageMetadata)
            tensors[name] = torch.empty(entry.size, dtype=entry.properties.dtype)
        with _quiet():
            entries = {_key(name, stored, raw=raw): tensor for name, tensor in tensors.items()}
            dcp_load(entries, storage_reader=reader, no_dist=True)
        scalars = read_json(folder, "scalars.json")
        names = scalars.get("exported") or {name: name for name in tensors}
        state = {name: tensors[own_name] for name, own_name in names.items()}
        return Weights(scalars["step"], state, any(key.startswith(_AVERAGE) for key in stored))


def _key(name: str, stored: Collection[str], *, raw: bool = False) -> str:
    """The name in a checkpoint of the tensor ``name`` that evaluations used, or of that which trains if ``raw``."""
    average = f"{_AVERAGE}{name}"
    return average if average in stored and not raw else f"model/{name}"


def load_whole(root: Path, checkpoint: CheckpointName, model: nn.Module) -> None:
    """Read the weights of a checkpoint that evaluations used into a whole ``model``, whichever plan wrote it.

    One rank calls it by itself. Raises ``StorageFault``.
    """
    folder = checkpoint.folder(root)
    if not exists(root, checkpoint):
        raise StorageFault(
            f"the checkpoint of step {checkpoint.step} of another trial, with whose weights this one begins, is not in "
            f"{folder.parent}: mount or restore this folder on every node"
        )
    with explained(f"the checkpoint of step {checkpoint.step} cannot be read from {folder.parent}"), _quiet():
        expect_intact(folder, checkpoint)
        reader = SafeReader(folder)
        stored = reader.read_metadata().state_dict_metadata
        entries = {_key(key.removeprefix("model/"), stored): tensor for key, tensor in _model_state(model).items()}
        dcp_load(entries, storage_reader=reader, no_dist=True)


def _save(
    root: Path,
    checkpoint: CheckpointName,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    kept: Kept,
    mirrored_attempt: int | None,
) -> Place:
    target = checkpoint.folder(root)
    target.parent.mkdir(parents=True, exist_ok=True)
    place = place_of(target.parent, is_shared=mirrored_attempt is None)
    if place.leads:
        remove_unfinished(target.parent)  # now, because they may be what fills the disk
    if place.is_spread:
        barrier()  # the first of this folder may not be rank 0, for whom all wait below
    unique = from_rank_0(uuid.uuid4().hex)
    staged, tag = unfinished(target, unique), "" if mirrored_attempt is None else f"{mirrored_attempt}-{unique}"
    try:
        tensors, scalars = _optimizer_state(model, optimizer, _prefix(optimizer))
        state = {**_model_state(model), **_kept_state(model), **tensors}
        with _quiet():
            writer = FileSystemWriter(staged, sync_files=True)
            written = dcp_save(in_chunks(state), storage_writer=writer, no_dist=not dist.is_initialized())
        scalars = of_all_stages(scalars)
        kept = of_all_stages(dict(kept))
        trainable = of_all_stages({name: True for name, each in model.named_parameters() if each.requires_grad})
        members = of_all_stages(_members(model, optimizer))
        spread = of_all_stages({key: True for key, state in tensors.items() if isinstance(state, DTensor)})
        names = of_all_stages(_exported_names(model))
        if rank() == 0:
            if not place.is_spread:
                expect_whole(staged, written)
            values = {
                "step": checkpoint.step,
                "groups": _group_values(optimizer),
                "members": members,
                "trainable": list(trainable),
                "state": scalars,
                "exported": names,
                "updates": updates_of(model).state(),
                "spread": list(spread),  # states that were computed from sharded gradients, even single numbers
            }
            write_json(staged / "scalars.json", values)
            torch.save(kept, staged / _KEPT)
        write_sums(staged, checkpoint, tag, leads=place.leads)
        if place.leads:
            if target.exists() and (place.is_spread or damage(target, checkpoint)):  # parts of two saves must not mix
                remove(target)
            commit(staged, target)
    except BaseException:
        if place.leads:  # the others must not: it may be about to commit it
            shutil.rmtree(staged, ignore_errors=True)
        raise
    return place


def _load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, with_options: bool) -> Kept:
    reader = SafeReader(folder)
    stored = reader.read_metadata().state_dict_metadata
    _expect_same_model(folder, stored, model)
    scalars = read_json(folder, "scalars.json")
    prefix = _prefix(optimizer)
    if not any(key.startswith(f"{prefix}optimizer/") for key in stored):
        prefix = ""  # it was not written by this many replicas with states of their own
    names = _names_of_held(model, optimizer)
    for key, entry in stored.items():
        if key.startswith(f"{prefix}optimizer/") and isinstance(entry, TensorStorageMetadata):
            name, _, field = key.removeprefix(f"{prefix}optimizer/").rpartition("/")  # a name may contain slashes
            if name not in names:  # it belongs to another rank
                continue
            optimizer.state[names[name]][field.replace("%2F", "/")] = _empty_state(
                names[name], entry, is_spread=key in scalars.get("spread", ())
            )
    tensors, _ = _optimizer_state(model, optimizer, prefix)
    _begin_kept(model, stored)
    tensors |= _kept_state(model)
    with _quiet():
        state = in_chunks({**_model_state(model), **tensors})
        dcp_load(state, storage_reader=reader, no_dist=not dist.is_initialized())
    if (averages := updates_of(model).averages) is not None:
        averages.begin_buffers(model)  # those that another trial did not average
    for key, fields in scalars["state"].items():
        name = key.removeprefix(prefix)
        if key.startswith(prefix) and name in names:
            optimizer.state[names[name]].update(fields)
    _begin_groups(model, optimizer, scalars)
    for number, group in enumerate(optimizer.param_groups if with_options else ()):
        for key, value in scalars["groups"][group.get("part_of", number)].items():
            group[key] = tuple(value) if isinstance(group.get(key), tuple) else value
    if isinstance(optimizer, ZeroOptimizer):
        optimizer.options.give()
    updates_of(model).load(scalars.get("updates", {}), with_options=with_options)
    return _read_kept(folder)


def _read_kept(folder: Path) -> Kept:
    """State that the training kept in attributes; nothing in a checkpoint from before there was such a file."""
    try:
        with open_plain(folder, _KEPT) as file:
            kept: Kept = torch.load(file, map_location="cpu", weights_only=True)
            return kept
    except FileNotFoundError:
        return NOTHING_KEPT


def _members(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, list[int]]:
    """Name of each parameter → the number of its group, in a list, among those that ``_group_values`` counts."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = [group for group in optimizer.param_groups if "part_of" not in group]
    return {
        names[parameter]: [number]
        for number, group in enumerate(groups)
        for parameter in group["params"]
        if parameter in names
    }


def _begin_groups(model: nn.Module, optimizer: torch.optim.Optimizer, scalars: Mapping[str, Any]) -> None:
    """Train the parameters that trained when the checkpoint was written, with groups that the training has added."""
    trainable = scalars.get("trainable")
    if trainable is None:  # from before this was written
        return
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        parameter.requires_grad_(name in trainable)
    num_groups = sum("part_of" not in group for group in optimizer.param_groups)
    for number, values in list(enumerate(scalars["groups"]))[num_groups:]:
        added = [parameters[name] for name, (group,) in scalars["members"].items() if group == number]
        optimizer.add_param_group({**values, "params": added})


def _names_of_held(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, nn.Parameter]:
    """The parameters by name whose states this rank holds: all of them, unless it is one of ZeRO-1's replicas."""
    owned = optimizer.own_parameters if isinstance(optimizer, ZeroOptimizer) else None
    return {name: parameter for name, parameter in model.named_parameters() if owned is None or parameter in owned}


def _expect_same_model(folder: Path, stored: Mapping[str, Any], model: nn.Module) -> None:
    """Raise ``WorkloadError`` if the checkpoint lacks a tensor of ``model``, or has it in another shape."""
    for key, tensor in _model_state(model).items():
        name, entry = key.removeprefix("model/"), stored.get(key)
        if isinstance(entry, TensorStorageMetadata) and entry.size == tensor.shape:
            continue
        has = f"has it as {list(entry.size)}" if isinstance(entry, TensorStorageMetadata) else "has no such tensor"
        raise WorkloadError(
            f"the checkpoint {folder.name} in {folder.parent} is of another model: {name} is {list(tensor.shape)} "
            f"here, and the checkpoint {has}; build the same model for the same parameters, or submit the study again"
        )


def _model_state(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, including those that ``state_dict`` omits; they share memory with the model."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {f"model/{name}": tensor.detach() for name, tensor in tensors}


def _exported_names(model: nn.Module) -> dict[str, str]:
    """Each name in the model's state dictionary → the name under which a checkpoint has this tensor."""
    modules = list(model.named_modules(remove_duplicate=False))  # once: those of peft make new parameters meanwhile
    stored, names = dict[int, str](), {}
    for prefix, module in modules:
        for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is not None:
                path = f"{prefix}.{name}" if prefix else name
                first = stored.setdefault(id(tensor), path)
                if name not in module._non_persistent_buffers_set:
                    names[path] = first
    return names


def _kept_state(model: nn.Module) -> dict[str, Tensor]:
    tensors_by_kind = {"average": averages_of(model), "gradient": previous_gradients_of(model)}
    return {
        f"{kind}/{name}": tensors[tensor]
        for kind, tensors in tensors_by_kind.items()
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
        if tensor in tensors
    }


def _begin_kept(model: nn.Module, stored: Collection[str]) -> None:
    """Make memory for the averages and gradients that are ``stored``; a parameter that has none there gets one when it
    trains."""
    updates = updates_of(model)
    for kind, tensors in (("average", updates.averages), ("gradient", updates.ada_scale)):
        if tensors is not None:
            tensors.begin(parameter for name, parameter in model.named_parameters() if f"{kind}/{name}" in stored)
    if updates.averages is not None:
        updates.averages.begin_buffers(
            model, [name for name, _ in model.named_buffers() if f"{_AVERAGE}{name}" in stored]
        )


def _prefix(optimizer: torch.optim.Optimizer) -> str:
    """Prefix of the names of the optimizer's states; Adasum's replicas have different ones (``optimizers.adasum``)."""
    replica = getattr(optimizer, "replica", 0)
    return f"replica{replica}/" if replica else ""


def _optimizer_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, prefix: str
) -> tuple[dict[str, Tensor], dict[str, dict[str, Any]]]:
    """State tensors by ``<prefix>optimizer/<parameter name>/<field>``, other values by prefixed name and field."""
    tensors: dict[str, Tensor] = {}
    scalars: dict[str, dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        for field, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"{prefix}optimizer/{name}/{field.replace('/', '%2F')}"] = value
            elif value is None or isinstance(value, bool | int | float | str):
                scalars.setdefault(f"{prefix}{name}", {})[field] = value
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
    tensor = torch.empty(entry.size, dtype=entry.properties.dtype)
    if isinstance(parameter, DTensor) and (tensor.ndim or is_spread):
        shared = [size == size_there for size, size_there in zip(tensor.shape, parameter.shape, strict=False)]
        placements = [
            placement if isinstance(placement, Shard) and shared[placement.dim :][:1] == [True] else Replicate()
            for placement in parameter.placements
        ]
        return distribute_tensor(tensor, parameter.device_mesh, placements, src_data_rank=None)
    return tensor


def _group_values(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    plain = (bool, int, float, str, tuple, list, type(None))
    return [
        {key: value for key, value in group.items() if key != "params" and isinstance(value, plain)}
        for group in optimizer.param_groups
        if "part_of" not in group  # otherwise it has the values of another group (``tensor_parallel.grouped_by_mesh``)
    ]


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the warnings about torch's own deprecated calls inside DCP."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
