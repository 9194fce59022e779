"""What this process holds, as Linux, malloc and torch count it: what a limit without a GPU is measured by."""

from __future__ import annotations

import ctypes
import gc
import mmap
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from estimators.model import MIB

THREAD_STACK_BYTES = MIB
# Tensors above it are mapped and unmapped one by one, so that what the system counts is what torch has allocated, to
# the page. Left to itself, malloc raises the threshold up to 32 MiB and keeps freed tensors: up to 20 % over.
# Price: the page faults of fresh memory, 1.8 × the CPU time of a step of a 6 × 128 transformer.
MMAP_THRESHOLD_BYTES = 128 * 1024


@dataclass(frozen=True, slots=True)
class Held:
    """``data_bytes`` of private writable memory, of which ``tensor_bytes`` are in tensors, and ``free_bytes`` are gaps
    in malloc's heap, which it can fill, but not give back."""

    data_bytes: int
    tensor_bytes: int = 0
    free_bytes: int = 0

    def kept_since(self, before: Held) -> int:
        """Bytes that have come since, and are neither tensors nor gaps where tensors have been.

        Negative where tensors have filled gaps that were there: these cost the process nothing, but are not free.
        """
        tensors, gaps = self.tensor_bytes - before.tensor_bytes, self.free_bytes - before.free_bytes
        return max(self.data_bytes - before.data_bytes - tensors - max(0, gaps), min(0, gaps))

    def grown(self, before: Held, after: Held) -> Held:
        """This with what came between the two, but for tensors; of gaps, those that are part of it."""
        tensors = after.tensor_bytes - before.tensor_bytes
        growth = max(0, after.data_bytes - before.data_bytes - tensors)
        gaps = min(growth, max(0, after.free_bytes - before.free_bytes))
        return replace(self, data_bytes=self.data_bytes + growth, free_bytes=self.free_bytes + gaps)


def held() -> Held:
    """What is held when all that can be given back has been."""
    give_back_free_memory()
    return Held(data_bytes(), _tensor_bytes(), _free_heap_bytes())


def data_bytes() -> int:
    """Private writable memory of this process, as RLIMIT_DATA counts it."""
    (held_bytes,) = _status("VmData")
    return held_bytes


@contextmanager
def high_water() -> Iterator[Callable[[], int]]:
    """Gives a function: by how many bytes has this process been larger, since it began, than it is now?

    Linux keeps the largest size of a process, but for its whole life: pages that nobody may touch, which count for the
    size alone, lift the present one up to it. And it keeps the most that was resident. A file that is mapped for a
    moment counts for the first, pages of libraries that it takes back for the second, tensors for both.
    """
    highest, size = _status("VmPeak", "VmSize")
    with suppress(OSError):  # a kernel without it never forgets; the size decides alone then
        Path("/proc/self/clear_refs").write_text("5")  # forget the most that was resident
    lift = mmap.mmap(-1, max(highest - size, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE, prot=0)

    def above_now() -> int:
        highest, size, most_resident, resident = _status("VmPeak", "VmSize", "VmHWM", "VmRSS")
        return min(highest - size, most_resident - resident)

    try:
        yield above_now
    finally:
        lift.close()


def _status(*names: str) -> list[int]:
    """These lines of the process's status, in bytes, all of one moment."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    sizes = {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words[-1] == "kB"}
    if not sizes.keys() >= set(names):
        raise OSError(f"/proc/self/status lacks {', '.join(names)}: a memory budget without a GPU needs Linux")
    return [sizes[name] for name in names]


def _tensor_bytes() -> int:
    """Of all tensors that Python knows; a shared storage counts once. Those of C++ alone are found by no one."""
    tensors = (thing for thing in gc.get_objects() if issubclass(type(thing), Tensor))
    storages = [
        tensor.untyped_storage()
        for tensor in tensors
        if torch._C._has_storage(tensor) and not is_traceable_wrapper_subclass(tensor)  # whose parts are found as well
    ]
    in_memory = [storage for storage in storages if storage.device.type == "cpu"]
    return sum({storage.data_ptr(): storage.nbytes() for storage in in_memory}.values())


class _HeapState(ctypes.Structure):
    """``struct mallinfo`` of glibc; the numbers are of 32 bits, and wrap."""

    _fields_ = [
        (name, ctypes.c_uint)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def _free_heap_bytes() -> int:
    mallinfo = ctypes.CDLL(None).mallinfo
    mallinfo.restype = _HeapState
    return int(mallinfo().fordblks)


def give_back_free_memory() -> None:
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)


@cache
def configure_malloc() -> None:
    """Allocator and threads such that memory counted is memory used; glibc only, once per process."""
    if sys.platform != "linux":
        raise OSError("a memory budget without a GPU needs Linux")
    libc = ctypes.CDLL(None)
    for option, value in (
        (-3, MMAP_THRESHOLD_BYTES),  # M_MMAP_THRESHOLD; setting it also ends its automatic growth
        (-8, 1),  # M_ARENA_MAX: an arena per thread would set apart memory for each
        (-1, 256 * 1024),  # M_TRIM_THRESHOLD
        (-2, 64 * 1024),  # M_TOP_PAD
    ):
        if libc.mallopt(option, value) != 1:
            raise OSError(f"mallopt({option}, {value}) was refused: a memory budget without a GPU needs glibc")
    attributes = ctypes.create_string_buffer(64)  # pthread_attr_t is 56 bytes on x86-64, 64 on arm64
    libc.pthread_attr_init(attributes)
    libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(THREAD_STACK_BYTES))  # the default counts 8 MiB each
    if libc.pthread_setattr_default_np(attributes) != 0:
        raise OSError("the default stack size of threads cannot be set: a memory budget without a GPU needs glibc")
