"""Reads the memory of this process from Linux, malloc and torch; the memory limit without a GPU is based on it."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from estimators.model import MIB

THREAD_STACK_BYTES = MIB
# Tensors above this size are mapped and unmapped one by one, so the system's count matches torch's allocations to the
# page. By default malloc raises the threshold up to 32 MiB and keeps freed tensors: the count is up to 20 % too high.
# The price is page faults for fresh memory: 1.8 × the CPU time of a step of a 6 × 128 transformer. Half the threshold
# would take 1.5 × as long again for a vision transformer. Without it, a model of many tensors just below the threshold
# leaves gaps in malloc's heap: an RNN needs 24 % more than its tensors.
MMAP_THRESHOLD_BYTES = 128 * 1024
# oneDNN, and ideep between it and torch, keep each operation and its description for every size, 1,024 of each by
# default: in bf16 252 KiB for each product of matrices. So many stay within what libraries may keep. A model that needs
# more in one step (a DenseNet of 121 layers: 360) compiles them again in each. Descriptions alone are made in no time.
LIBRARY_CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256", "LRU_CACHE_CAPACITY": "16"}


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """Memory of this process. ``data_bytes`` is its private writable memory without code, which includes the other two.

    ``tensor_bytes`` is in tensors. ``free_bytes`` is in gaps in malloc's heap, which malloc can fill but not give back.
    Each of ``num_threads`` has a stack in it.
    """

    data_bytes: int
    tensor_bytes: int = 0
    free_bytes: int = 0
    num_threads: int = 0

    def kept_since(self, before: HeldMemory, kept_bytes: int = 0) -> int:
        """Bytes added since ``before``, without tensors and without gaps that freed tensors have left.

        Gaps within the ``kept_bytes`` of an earlier moment are left by libraries, which will fill them again. Negative
        if tensors have filled gaps that existed before: the process did not grow by them, but they are used.
        """
        tensors, gaps = self.tensor_bytes - before.tensor_bytes, self.free_bytes - before.free_bytes
        grown = self.data_bytes - before.data_bytes - tensors
        return max(grown - max(0, gaps), min(kept_bytes, grown), min(0, gaps))

    def grown(self, before: HeldMemory, after: HeldMemory) -> HeldMemory:
        """This plus the growth from ``before`` to ``after`` without tensors; gaps count only as part of that growth."""
        tensors = after.tensor_bytes - before.tensor_bytes
        growth = max(0, after.data_bytes - before.data_bytes - tensors)
        gaps = min(growth, max(0, after.free_bytes - before.free_bytes))
        num_new_threads = max(0, after.num_threads - before.num_threads)
        return HeldMemory(
            self.data_bytes + growth, self.tensor_bytes, self.free_bytes + gaps, self.num_threads + num_new_threads
        )


def measure_held() -> HeldMemory:
    """The memory of this process after it has given back all that it can."""
    give_back_free_memory()
    return held_now()


def held_now() -> HeldMemory:
    """The memory of this process, with garbage and pages that it could give back."""
    return HeldMemory(data_bytes(), _tensor_bytes(), _free_heap_bytes(), num_threads())


def data_bytes() -> int:
    """Bytes of private writable memory of this process without ``code_bytes``."""
    return counted_bytes() - code_bytes()


def counted_bytes() -> int:
    """Bytes of private writable memory of this process, as RLIMIT_DATA counts them."""
    (held_bytes,) = _status("VmData")
    return held_bytes


def code_bytes() -> int:
    """Bytes of ``counted_bytes`` that are room for code that libraries compile: 256 KiB for each function of oneDNN.

    Only the pages that code fills take memory: 4 % of them.
    """
    lines = (line.split() for line in Path("/proc/self/maps").read_text().splitlines())
    limits = (words[0].split("-") for words in lines if words[1] == "rwxp" and len(words) == 5)
    return sum(int(end, 16) - int(begin, 16) for begin, end in limits)


def num_threads() -> int:
    """Number of threads of this process."""
    return len(os.listdir("/proc/self/task"))


@contextmanager
def high_water() -> Iterator[Callable[[], int]]:
    """Yields a function that returns how many bytes the process's peak since entry is above its current size.

    The function takes the smaller of two differences. The first is to the largest size (VmPeak). Linux keeps that for
    the whole life of a process, so pages without access rights, which count for the size only, first raise the present
    size to it. The second is to the largest resident size (VmHWM). A file that is mapped for a moment affects only the
    first, library pages that the kernel evicts affect only the second, and tensors affect both.
    """
    highest, size = _status("VmPeak", "VmSize")
    with suppress(OSError):  # without clear_refs the kernel cannot reset VmHWM, and the size alone decides
        Path("/proc/self/clear_refs").write_text("5")  # reset the largest resident size (VmHWM)
    lift = mmap.mmap(-1, max(highest - size, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE, prot=0)

    def above_now() -> int:
        highest, size, most_resident, resident = _status("VmPeak", "VmSize", "VmHWM", "VmRSS")
        return min(highest - size, most_resident - resident)

    try:
        yield above_now
    finally:
        lift.close()


def _status(*names: str) -> list[int]:
    """The values of these lines of the process's status, in bytes, all read at once."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    sizes = {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words[-1] == "kB"}
    if not sizes.keys() >= set(names):
        raise OSError(f"/proc/self/status lacks {', '.join(names)}: a memory budget without a GPU needs Linux")
    return [sizes[name] for name in names]


def _tensor_bytes() -> int:
    """Bytes of all tensors that Python knows, those in shared memory left out; a storage of several counts once.

    Tensors known only to C++ are not found.
    """
    tensors = (thing for thing in gc.get_objects() if issubclass(type(thing), Tensor))
    storages = [
        tensor.untyped_storage()
        for tensor in tensors
        if torch._C._has_storage(tensor) and not is_traceable_wrapper_subclass(tensor)  # its parts are counted instead
    ]
    in_memory = [storage for storage in storages if storage.device.type == "cpu" and not storage.is_shared()]
    return sum({storage.data_ptr(): storage.nbytes() for storage in in_memory if not _is_on_host(storage)}.values())


def host_copy(tensor: Tensor) -> Tensor:
    """A copy of ``tensor`` in host memory that is not the candidate's, whether it is on a GPU or a virtual device.

    Without a GPU it lies in shared memory, which RLIMIT_DATA does not count.
    """
    detached = tensor.detach()
    if detached.device.type != "cpu":
        return detached.cpu()
    if not detached.numel():
        return detached.clone()
    shared = mmap.mmap(-1, detached.numel() * detached.element_size())
    copy = torch.frombuffer(shared, dtype=detached.dtype, count=detached.numel()).view(detached.shape).copy_(detached)
    _on_host[copy.untyped_storage().data_ptr()] = shared
    return copy


_on_host: WeakValueDictionary[int, mmap.mmap] = WeakValueDictionary()


def _is_on_host(storage: torch.UntypedStorage) -> bool:
    return storage.data_ptr() in _on_host


class _HeapState(ctypes.Structure):
    """glibc's ``struct mallinfo``; its numbers have 32 bits and wrap around."""

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
    """Collect garbage, and return malloc's free pages to the system."""
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)


@cache
def configure_malloc() -> None:
    """Configure malloc and thread stacks so that counted memory is used memory; once per process.

    Raises ``OSError`` on systems other than Linux with glibc.
    """
    if sys.platform != "linux":
        raise OSError("a memory budget without a GPU needs Linux")
    for name, capacity in LIBRARY_CACHES.items():  # libraries read them at their first use
        os.environ.setdefault(name, capacity)
    libc = ctypes.CDLL(None)
    for option, value in (
        (-3, MMAP_THRESHOLD_BYTES),  # M_MMAP_THRESHOLD; setting it also stops its automatic growth
        (-8, 1),  # M_ARENA_MAX: with an arena per thread, malloc would reserve memory for each
        (-1, 256 * 1024),  # M_TRIM_THRESHOLD
        (-2, 64 * 1024),  # M_TOP_PAD
    ):
        if libc.mallopt(option, value) != 1:
            raise OSError(f"mallopt({option}, {value}) was refused: a memory budget without a GPU needs glibc")
    attributes = ctypes.create_string_buffer(64)  # pthread_attr_t is 56 bytes on x86-64, 64 on arm64
    libc.pthread_attr_init(attributes)
    libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(THREAD_STACK_BYTES))  # the default is 8 MiB per thread
    if libc.pthread_setattr_default_np(attributes) != 0:
        raise OSError("the default stack size of threads cannot be set: a memory budget without a GPU needs glibc")
