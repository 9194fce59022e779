"""The code paths that torch takes on CUDA, for a trace on fake CPU tensors, where these differ in memory.

What differs: which operations autocast runs in fp32, whether attention with dropout and RMS norm have a fused kernel,
what dropout keeps, and whether an optimizer by default updates all parameters at once (foreach). CUDA's kernels are
assumed to need no workspace, because torch tries another engine where cuDNN's workspace does not fit. Peaks that others
published for A100s are compared with such traces by ``benchmarks.published``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import optimizer
from torch.utils import _foreach_utils
from torch.utils._pytree import tree_map_only

from estimators.tracing.device.device import Workspace

# AT_FORALL_FP32 and AT_FORALL_FP32_SET_OPT_DTYPE in ATen/autocast_mode.h of torch 2.13, without operations
# that are not used to train networks.
IN_FP32 = (
    "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "pow.Tensor_Scalar", "pow.Tensor_Tensor",
    "pow.Scalar", "softplus", "layer_norm", "native_layer_norm", "rms_norm", "group_norm", "cosine_similarity",
    "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss",
    "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss", "soft_margin_loss", "triplet_margin_loss",
    "binary_cross_entropy_with_logits", "dist", "cdist", "logsumexp", "upsample_nearest1d", "upsample_nearest2d",
    "upsample_nearest3d", "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
    "prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "sum", "sum.dim_IntList",
    "linalg_vector_norm",
)  # fmt: skip

_WITHOUT_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)


class Cuda:
    """A GPU: autograd's objects are not in its memory, and what kernels need is assumed to be nothing."""

    holds_objects = False
    unknown_percent = 0

    def code_paths(self) -> AbstractContextManager[None]:
        """The code paths that torch takes on CUDA."""
        return as_on_cuda()

    def workspace(self, operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> Workspace:
        """Always empty."""
        return ()


CUDA = Cuda()


@contextlib.contextmanager
def as_on_cuda() -> Iterator[None]:
    """Inside this context, operations on CPU tensors take the code paths of CUDA."""
    with _autocast_of_cuda(), _foreach_by_default(), _fused_attention(), _fused_dropout(), _fused_rms_norm():
        yield


@contextlib.contextmanager
def _autocast_of_cuda() -> Iterator[None]:
    """Make ``torch.autocast("cpu")`` and ``torch.autocast("cuda")`` cast on the CPU what the latter casts on CUDA."""
    real = torch.autocast.__init__

    def autocast(
        self: torch.autocast, device_type: str, dtype: torch.dtype | None = None, *args: Any, **kw: Any
    ) -> None:
        half = torch.float16 if device_type == "cuda" else None  # the default on CUDA
        real(self, "cpu" if device_type == "cuda" else device_type, dtype or half, *args, **kw)

    library = torch.library.Library("aten", "IMPL", "AutocastCPU")  # type: ignore[no-untyped-call]
    try:
        for name in IN_FP32:
            if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "AutocastCPU"):
                library.impl(name, _in_fp32(name))  # type: ignore[no-untyped-call]
        with mock.patch.object(torch.autocast, "__init__", autocast):
            yield
    finally:
        library._destroy()  # type: ignore[no-untyped-call]


def _in_fp32(name: str) -> Callable[..., Any]:
    packet, _, overload = name.partition(".")
    operation = getattr(getattr(torch.ops.aten, packet), overload or "default")

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_WITHOUT_AUTOCAST):
            return operation(*tree_map_only(Tensor, _widened, args), **tree_map_only(Tensor, _widened, kwargs))

    return run


def _widened(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


@contextlib.contextmanager
def _foreach_by_default() -> Iterator[None]:
    """Use foreach kernels by default, in optimizers and for clipping gradients."""
    with contextlib.ExitStack() as patches:
        for module in (optimizer, _foreach_utils):
            devices = mock.patch.object(module, "_get_foreach_kernels_supported_devices", return_value=["cpu"])
            types = [*module._foreach_supported_types, FakeTensor]
            patches.enter_context(devices)
            patches.enter_context(mock.patch.object(module, "_foreach_supported_types", types))
        yield


@contextlib.contextmanager
def _fused_attention() -> Iterator[None]:
    """Fuse attention with dropout. A CPU has no such kernel and keeps all pairs of positions; CUDA's keep a seed."""
    operation = torch.ops.aten.scaled_dot_product_attention.default

    def run(
        query: Tensor, key: Tensor, value: Tensor, mask: Any = None, dropout: float = 0.0, *args: Any, **kw: Any
    ) -> Any:
        return operation.decompose(query, key, value, mask, 0.0, *args, **kw)

    # Not a TorchFunctionMode: torch disables it in backward passes, where checkpoints compute attention again.
    with _implemented("scaled_dot_product_attention", run):
        yield


@contextlib.contextmanager
def _fused_dropout() -> Iterator[None]:
    """Let dropout keep a mask of one byte for each number, as CUDA's kernel does; a CPU keeps factors in the input's
    dtype (``is_fused_kernel_acceptable`` in ATen/native/Dropout.cpp)."""
    operation = torch.ops.aten.dropout.default

    def run(values: Tensor, probability: float, train: bool) -> Any:
        if train and 0 < probability < 1 and values.numel():
            return torch.ops.aten.native_dropout.default(values, probability, train)[0]
        return operation._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, values, probability, train)

    with _implemented("dropout", run):
        yield


@contextlib.contextmanager
def _fused_rms_norm() -> Iterator[None]:
    """Let RMS norm keep its input and one number for each row, as CUDA's kernel does; a CPU keeps the products.

    Layer norm stands in for it, which has nearly the same outputs. As on CUDA, a weight of another dtype than the input
    is not fused (``rms_norm_symint`` in ATen/native/layer_norm.cpp).
    """
    operation = torch.ops.aten.rms_norm.default

    def run(values: Tensor, shape: list[int], weight: Tensor | None = None, eps: float | None = None) -> Any:
        if weight is None or weight.dtype == values.dtype:
            return torch.ops.aten.native_layer_norm.default(values, shape, weight, None, eps or 1e-6)[0]
        return operation._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, values, shape, weight, eps)

    with _implemented("rms_norm", run):
        yield


@contextlib.contextmanager
def _implemented(name: str, run: Callable[..., Any]) -> Iterator[None]:
    """Let ``run`` stand in for torch's operation ``name`` on a CPU, in forward and backward passes."""
    library = torch.library.Library("aten", "IMPL", "AutogradCPU")  # type: ignore[no-untyped-call]
    try:
        library.impl(name, run)  # type: ignore[no-untyped-call]
        yield
    finally:
        library._destroy()  # type: ignore[no-untyped-call]
