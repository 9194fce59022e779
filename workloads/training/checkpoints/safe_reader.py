"""Reads the index of a checkpoint without running code that somebody may have put into it."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta


class SafeReader(FileSystemReader):
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
