"""Reads a checkpoint without running code, or opening other files, that somebody may have put or named in it."""

from __future__ import annotations

import os
import pickle
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from enum import EnumMeta
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from workloads.files.untrusted import open_plain


class SafeReader(FileSystemReader):
    """Reads a checkpoint's index but accepts only torch's own classes in it; tensors are read with ``weights_only``."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.fs = _PlainFiles(folder)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        with open_plain(Path(self.path), ".metadata") as file:
            metadata: Metadata = _SafeUnpickler(file).load()
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class _PlainFiles(FileSystem):
    """Opens only plain files of a folder: the index may name any file of the host."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        with open_plain(self._folder, str(path).removeprefix(f"{self._folder}/")) as stream:
            yield stream


class _SafeUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _GETATTR:
            return _member_of
        value = getattr(torch, name, None) if module == "torch" else None
        if name not in _ALLOWED.get(module, ()) and not isinstance(value, torch.dtype):
            raise pickle.UnpicklingError(
                f"{module}.{name} has no place in a checkpoint, so it was not loaded: its files may be damaged or "
                "altered; restore this checkpoint's folder from a copy, or submit the study again"
            )
        return super().find_class(module, name)


def _member_of(kind: Any, name: str) -> Any:
    """The member of an enumeration: Python 3.11.0 to 3.11.3 write it as a call of ``getattr``."""
    if not isinstance(kind, EnumMeta):
        raise pickle.UnpicklingError("builtins.getattr has no place in a checkpoint, so it was not loaded")
    return kind[name]


_GETATTR = {("builtins", "getattr"), ("__builtin__", "getattr")}
_ALLOWED: Mapping[str, Collection[str]] = {
    "torch": ("Size",),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo", "_StoragePrefix"),
    "torch.distributed.checkpoint.metadata": (
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    ),
    "torch.serialization": ("_get_layout",),
    "pathlib": ("PosixPath", "PurePosixPath"),
    "collections": ("OrderedDict",),
}
