"""Asks the oneDNN inside torch which memory formats and how much scratch memory a primitive takes, without running it.

oneDNN decides both when a *primitive descriptor* is created, from shapes alone; nothing is allocated or compiled for
that. Torch links oneDNN statically and does not export its functions, but the symbol table of ``libtorch_cpu.so`` has
their addresses. They are called by oneDNN's C API (``dnnl.h``), which is stable within a major version. Where the table
is missing (a stripped library, or another system than Linux), ``is_available`` says so.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import struct
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

_MAJOR = 3  # the version of the C API
_MAX_DIMENSIONS = 12
_CPU = 1
_ANY_FORMAT = 1
_USER_SCRATCHPAD = 1
_FORWARD, _BACKWARD = 64, 128
_LEFT_TO_RIGHT = 1
_CONVOLUTION, _DECONVOLUTION = 0x1, 0xA
_TYPES = {torch.float16: 1, torch.bfloat16: 2, torch.float32: 3}
_SRC, _WEIGHTS, _DST, _WORKSPACE, _SCRATCHPAD = 129, 131, 133, 135, 136
_DIFF_SRC, _DIFF_WEIGHTS, _DIFF_DST = 130, 132, 134
_NAME, _NUM_BLOCKS = 8, 263
_SYMBOL_TABLE = 2
_SYMBOL = np.dtype([("name", "<u4"), ("kind", "<u4"), ("value", "<u8"), ("size", "<u8")])
_FUNCTIONS = (
    "dnnl_version",
    "dnnl_engine_create",
    "dnnl_memory_desc_create_with_strides",
    "dnnl_memory_desc_create_with_tag",
    "dnnl_memory_desc_destroy",
    "dnnl_memory_desc_equal",
    "dnnl_memory_desc_get_size",
    "dnnl_memory_desc_query",
    "dnnl_primitive_attr_create",
    "dnnl_primitive_attr_set_scratchpad_mode",
    "dnnl_primitive_desc_destroy",
    "dnnl_primitive_desc_query",
    "dnnl_primitive_desc_query_md",
    "dnnl_convolution_forward_primitive_desc_create",
    "dnnl_convolution_backward_data_primitive_desc_create",
    "dnnl_convolution_backward_weights_primitive_desc_create",
    "dnnl_deconvolution_forward_primitive_desc_create",
    "dnnl_deconvolution_backward_data_primitive_desc_create",
    "dnnl_deconvolution_backward_weights_primitive_desc_create",
    "dnnl_matmul_primitive_desc_create",
    "dnnl_lstm_forward_primitive_desc_create",
    "dnnl_lstm_backward_primitive_desc_create",
)


class NoKernel(Exception):
    """oneDNN has no kernel for what was asked."""


@dataclass(frozen=True, slots=True)
class MemoryFormat:
    """The memory format that a primitive wants for one tensor.

    ``num_bytes`` includes padding. ``is_given`` says whether the tensor has this format already, ``is_plain`` whether
    the format is described by strides, without blocks and padding, and ``is_contiguous`` whether these are the strides
    of a contiguous tensor.
    """

    num_bytes: int
    is_given: bool
    is_plain: bool
    is_contiguous: bool

    @property
    def copied(self) -> int:
        """Bytes of the copy that brings the tensor into this format; 0 if it needs none."""
        return 0 if self.is_given else self.num_bytes


@dataclass(frozen=True, slots=True)
class Primitive:
    """The needs of one pass of an operation: the formats of its tensors (or of their gradients), and scratch memory."""

    images: MemoryFormat
    weight: MemoryFormat
    output: MemoryFormat
    scratch_bytes: int
    is_product: bool  # computed as a product of matrices, which may pack them in memory of its own


@dataclass(frozen=True, slots=True)
class Geometry:
    """Options of a convolution as oneDNN takes them, a number for each dimension of space."""

    stride: Sequence[int]
    dilation: Sequence[int]
    padding: Sequence[int]
    padding_after: Sequence[int]
    transposed: bool


def is_available() -> bool:
    """Whether oneDNN can be asked in this process."""
    return _library() is not None


def convolution(
    of: str, image: Tensor, weight: Tensor, output: Tensor, geometry: Geometry, *, bias: bool, keeps_images: bool
) -> Primitive:
    """The pass ``of`` ("forward", "backward_data" or "backward_weights") of a convolution.

    ``weight`` has a dimension of groups if there are several, then outputs and inputs, also if transposed. With
    ``keeps_images`` they stay in the formats that they have; else oneDNN chooses. Raises ``NoKernel``.
    """
    with _Query() as query:
        source, weights, target = (query.any(tensor) for tensor in (image, weight, output))
        if keeps_images:
            source, target = query.described(image), query.described(output)
        biases = query.any(output.new_empty(output.shape[1])) if bias else None
        dilation = [size - 1 for size in geometry.dilation]
        options = [*map(_numbers, (geometry.stride, dilation, geometry.padding, geometry.padding_after))]
        kind = "deconvolution" if geometry.transposed else "convolution"
        algorithm = _DECONVOLUTION if geometry.transposed else _CONVOLUTION
        forward = (source, weights, biases if of == "forward" else None, target, *options)
        primitive = query.primitive(f"{kind}_forward", _FORWARD, algorithm, *forward)
        whats = (_SRC, _WEIGHTS, _DST)
        if of != "forward":
            whats = (_DIFF_SRC, _WEIGHTS, _DIFF_DST) if of == "backward_data" else (_SRC, _DIFF_WEIGHTS, _DIFF_DST)
            images = (source, weights, target) if of == "backward_data" else (source, weights, biases, target)
            primitive = query.primitive(f"{kind}_{of}", algorithm, *images, *options, primitive)
        images_in, weight_in, made_in = (
            query.layout(primitive, argument, tensor)
            for argument, tensor in zip(whats, (image, weight, output), strict=True)
        )
        scratch_bytes = query.num_bytes(primitive, _SCRATCHPAD)
        return Primitive(images_in, weight_in, made_in, scratch_bytes, "gemm" in query.name(primitive))


@dataclass(frozen=True, slots=True)
class Lstm:
    """The needs of one pass of one layer. ``kept_bytes`` is oneDNN's *workspace*, which the backward pass needs."""

    kept_bytes: int
    copied_bytes: int  # of the weights and, backward, of their gradients
    scratch_bytes: int
    is_product: bool


def lstm(of: str, num_steps: int, batch: int, num_inputs: int, num_hidden: int, dtype: torch.dtype) -> Lstm:
    """The pass ``of`` ("forward" or "backward") of one layer of an LSTM, as ideep's operators/lstm.hpp asks for it.

    Raises ``NoKernel``.
    """

    def states(*sizes: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.empty(sizes, dtype=dtype, device="meta")

    def weights(size: int, dtype: torch.dtype = dtype) -> Tensor:
        # as torch stores it: outputs before inputs
        return states(1, 1, 4, num_hidden, size, dtype=dtype).permute(0, 1, 4, 2, 3)

    inputs, outputs = states(num_steps, batch, num_inputs), states(num_steps, batch, num_hidden)
    state, biases = states(1, 1, batch, num_hidden), states(1, 1, 4, num_hidden)
    with _Query() as query:

        def described(dtype: torch.dtype) -> list[Any]:
            before = [query.described(state_tensor.to(dtype)) for state_tensor in (inputs, state, state)]
            chosen = [query.any(weights(size, dtype)) for size in (num_inputs, num_hidden)]
            after = [query.described(state_tensor.to(dtype)) for state_tensor in (biases, outputs, state, state)]
            return [*before, *chosen, None, None, *after]

        primitive = query.primitive("lstm_forward", _FORWARD, _LEFT_TO_RIGHT, *described(dtype), 0)
        kept_bytes = query.num_bytes(primitive, _WORKSPACE)
        whats = [(_WEIGHTS, dtype)]
        if of == "backward":
            gradients = described(torch.float32)
            tensors = (*described(dtype), *gradients, 0, primitive)
            primitive = query.primitive("lstm_backward", _BACKWARD, _LEFT_TO_RIGHT, *tensors)
            whats.append((_DIFF_WEIGHTS, torch.float32))
        copied_bytes = sum(
            query.layout(primitive, argument, weights(size, kind), index).copied
            for argument, kind in whats
            for index, size in enumerate((num_inputs, num_hidden))
        )
        scratch_bytes = query.num_bytes(primitive, _SCRATCHPAD)
        return Lstm(kept_bytes, copied_bytes, scratch_bytes, "ref" in query.name(primitive))


def product_scratch_bytes(first: Tensor, second: Tensor) -> int:
    """Bytes of scratch memory for the product of two matrices. Raises ``NoKernel``."""
    product = torch.empty(first.shape[0], second.shape[1], dtype=first.dtype, device="meta")
    with _Query() as query:
        tensors = (query.described(first), query.described(second), None, query.described(product))
        return query.num_bytes(query.primitive("matmul", *tensors), _SCRATCHPAD)


class _Query:
    """Creates descriptors, and frees them at the end. oneDNN is asked with one thread, as ranks have."""

    def __init__(self) -> None:
        library = _library()
        assert library is not None, "ask is_available first"
        self._functions, self._engine, self._attributes = library
        self._end = ExitStack()

    def __enter__(self) -> _Query:
        num_threads = torch.get_num_threads()
        if num_threads != 1:
            torch.set_num_threads(1)
            self._end.callback(torch.set_num_threads, num_threads)
        return self

    def __exit__(self, *_: object) -> None:
        self._end.close()

    def described(self, tensor: Tensor) -> Any:
        """A tensor of this shape with its strides."""
        return self._memory("strides", tensor, _numbers(tensor.stride()))

    def any(self, tensor: Tensor) -> Any:
        """A tensor of this shape in the format that oneDNN chooses."""
        return self._memory("tag", tensor, _ANY_FORMAT)

    def primitive(self, kind: str, *args: Any) -> Any:
        """The descriptor of a primitive. Raises ``NoKernel``."""
        descriptor = ctypes.c_void_p()
        create = self._functions[f"dnnl_{kind}_primitive_desc_create"]
        if create(ctypes.byref(descriptor), self._engine, *args, self._attributes) != 0:
            raise NoKernel(kind)
        self._end.callback(self._functions["dnnl_primitive_desc_destroy"], descriptor)
        return descriptor

    def num_bytes(self, primitive: Any, argument: int) -> int:
        """Bytes of one of the primitive's tensors; 0 if it has none."""
        return int(self._functions["dnnl_memory_desc_get_size"](self._wanted(primitive, argument)))

    def name(self, primitive: Any) -> str:
        """The name of the implementation that oneDNN chose."""
        name = ctypes.c_char_p()
        self._functions["dnnl_primitive_desc_query"](primitive, _NAME, 0, ctypes.byref(name))
        return (name.value or b"").decode()

    def layout(self, primitive: Any, argument: int, tensor: Tensor, index: int = 0) -> MemoryFormat:
        """The format of one of the primitive's tensors, compared with the tensor that there is.

        ``index`` is its number if there are several of a kind.
        """
        queried, equal = self._wanted(primitive, argument, index), self._functions["dnnl_memory_desc_equal"]
        num_blocks = ctypes.c_int()
        self._functions["dnnl_memory_desc_query"](queried, _NUM_BLOCKS, ctypes.byref(num_blocks))
        is_given = equal(queried, self.described(tensor)) == 1
        is_contiguous = equal(queried, self.described(tensor.new_empty(tensor.shape))) == 1
        num_bytes = int(self._functions["dnnl_memory_desc_get_size"](queried))
        return MemoryFormat(num_bytes, is_given, num_blocks.value == 0, is_contiguous)

    def _wanted(self, primitive: Any, argument: int, index: int = 0) -> Any:
        return ctypes.c_void_p(self._functions["dnnl_primitive_desc_query_md"](primitive, argument, index))

    def _memory(self, by: str, tensor: Tensor, last: Any) -> Any:
        descriptor = ctypes.c_void_p()
        create = self._functions[f"dnnl_memory_desc_create_with_{by}"]
        if create(ctypes.byref(descriptor), tensor.ndim, _numbers(tensor.shape), _TYPES[tensor.dtype], last) != 0:
            raise NoKernel(f"a tensor of {tuple(tensor.shape)}")
        self._end.callback(self._functions["dnnl_memory_desc_destroy"], descriptor)
        return descriptor


def _numbers(numbers: Sequence[int]) -> Any:
    return (ctypes.c_int64 * _MAX_DIMENSIONS)(*numbers)


@cache
def _library() -> tuple[dict[str, Any], Any, Any] | None:
    """The functions by name, an engine for the CPU, and attributes by which the caller provides scratch memory."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    addresses = _addresses(path, _FUNCTIONS)
    start = _start(path)
    if addresses is None or start is None:
        return None
    functions = {name: ctypes.CFUNCTYPE(ctypes.c_int)(start + address) for name, address in addresses.items()}
    functions["dnnl_memory_desc_get_size"].restype = ctypes.c_size_t
    for name in ("dnnl_version", "dnnl_primitive_desc_query_md"):
        functions[name].restype = ctypes.c_void_p
    if ctypes.c_int.from_address(functions["dnnl_version"]()).value != _MAJOR:
        return None
    engine, attributes = ctypes.c_void_p(), ctypes.c_void_p()
    functions["dnnl_engine_create"](ctypes.byref(engine), _CPU, ctypes.c_size_t(0))
    functions["dnnl_primitive_attr_create"](ctypes.byref(attributes))
    functions["dnnl_primitive_attr_set_scratchpad_mode"](attributes, _USER_SCRATCHPAD)
    return functions, engine, attributes


def _start(path: Path) -> int | None:
    """The address at which this process has loaded a library; None if it has not, or if that cannot be seen."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    first = next((line for line in lines if line.endswith(str(path.resolve()))), None)
    return int(first.split("-")[0], 16) if first else None


def _addresses(path: Path, names: Sequence[str]) -> dict[str, int] | None:
    """Addresses of functions, relative to the library's start, from its symbol table; None if they are not all there.

    The tables are those of 64-bit ELF files (``man 5 elf``).
    """
    if not path.exists():
        return None
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
        if image[:5] != b"\x7fELF\x02":
            return None
        (table,) = struct.unpack_from("<Q", image, 40)
        entry_bytes, num_sections = struct.unpack_from("<HH", image, 58)
        sections = [struct.unpack_from("<IIQQQQIIQQ", image, table + k * entry_bytes) for k in range(num_sections)]
        symbols = next((section for section in sections if section[1] == _SYMBOL_TABLE), None)
        if symbols is None:
            return None
        entries = np.frombuffer(image[symbols[4] : symbols[4] + symbols[5]], dtype=_SYMBOL)
        first, num = sections[symbols[6]][4:6]
        texts = re.compile(rb"\0(dnnl_\w+)(?=\0)").finditer(image, first, first + num)
        places = {text[1].decode(): text.start(1) - first for text in texts}
        if not places.keys() >= set(names):
            return None
        return {name: int(entries["value"][entries["name"] == places[name]][0]) for name in names}
