"""Values that are known although the tensors are fake, so that code may look at them.

Fake tensors have shapes and no values. But many models look at a few values that do not depend on training: numbers
counted by ``torch.arange``, masks made of them, the labels of a batch. A small tensor whose inputs are all known has a
*twin*: real memory with the values that the fake memory would hold. Views share the twin of their memory.

Checks for NaN and infinity read values that nobody can know. They are assumed to find neither, and whoever traces is
told so.
"""

from __future__ import annotations

import math
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

_aten = torch.ops.aten
_MOST_BYTES = 2**24  # of a twin: computing larger ones would take longer than the trace
_MOST_BATCH_BYTES = 2**24
_MOST_DRAWN = 16  # random numbers that a decision may depend on; dropout draws more

FINITE = "checks for NaN and infinity find none"
FIRST_SAMPLES = "data decide as the first samples do"
HOLDS = "a check holds"
DRAWN = "drawn at random"
EVEN = "choices by the model are even"
WHOLE = "a mask chooses all that it may"
_VARYING = {FIRST_SAMPLES, DRAWN, EVEN}
ZEROS = "numbers that are taken out of tensors are 0"
IN_EVALUATION = "in evaluate, "

_HOME = Path(__file__).parents[2]
_OURS = ("estimators", "workloads/sandbox", "workloads/parallel", "workloads/training")
_HIDDEN = (str(Path(torch.__file__).parent), *(str(_HOME / name) for name in _OURS))

# Comparisons of a tensor with itself (only NaN differs from itself) and with infinity, when there is neither.
_WITH_ITSELF = {_aten.ne.Tensor: False, _aten.eq.Tensor: True}
_WITH_INFINITY = {_aten.ne.Scalar: True, _aten.eq.Scalar: False}
_CHECKS = {_aten.isnan.default: False, _aten.isinf.default: False, _aten.isfinite.default: True}
_REDUCES = {_aten.all, _aten.any, _aten.amax, _aten.amin, _aten.max, _aten.min}
_SUMS = {_aten.sum, _aten.count_nonzero, _aten.cumsum, _aten.mean}  # of zeros are zero
# Operations that return the indices of the largest elements, with the place of the argument ``dim``.
_CHOOSES = {_aten.topk.default: 2, _aten.argmax.default: 1, _aten.max.dim: 1}
_LIFTS = {_aten.lift_fresh.default, _aten.lift_fresh_copy.default}
_MASKED = {_aten.index.Tensor, _aten.index_put_.default, _aten.index_put.default, _aten._index_put_impl_.default}


@dataclass(frozen=True, slots=True)
class _Known:
    """Knowledge of a storage: its ``twin``, or that all its elements have the value of a ``twin`` of one element.

    ``because`` are the assumptions that this rests on.
    """

    storage: Callable[[], Any]
    twin: Tensor
    is_uniform: bool
    because: frozenset[str]

    def value(self, fake: Tensor) -> Tensor:
        """The real tensor for a fake one in this storage; one element for each dimension if all are equal."""
        if self.is_uniform:
            return self.twin.reshape((1,) * fake.ndim)
        real = torch.empty(0, dtype=fake.dtype)
        return real.set_(self.twin.untyped_storage(), fake.storage_offset(), fake.shape, fake.stride())


def _nowhere() -> None:
    return None


class Values:
    """The known values of one fake mode's tensors.

    A model's own choices, such as experts, are taken to be spread evenly if ``is_even``, and otherwise to be all the
    same. ``has_drawn`` says whether any decision was random, ``varies`` whether a step with other samples may decide
    otherwise. ``in_evaluation``: what runs now only makes metrics, so whole tensors of unknown values may be looked at:
    they are 0.
    """

    def __init__(self, *, is_even: bool = True) -> None:
        self.is_even = is_even
        self.in_evaluation = False
        self._known: dict[int, _Known] = {}
        self._places: dict[str, dict[tuple[str, int], None]] = {}
        self.has_drawn = self.varies = False

    @property
    def assumed(self) -> list[str]:
        """Assumptions of decisions, each with the first place in the code and the number of others."""
        return [_told(one, list(places)) for one, places in sorted(self._places.items())]

    @contextmanager
    def of_evaluation(self) -> Iterator[None]:
        """Put this around an evaluation: its assumptions say so, and its random draws decide nothing about a step."""
        has_drawn, self.in_evaluation = self.has_drawn, True
        try:
            yield
        finally:
            self.has_drawn, self.in_evaluation = has_drawn, False

    def know_batch(self, fake: Any, real: Any) -> None:
        """The values of a batch's samples."""
        for one, value in zip(tree_leaves(fake), tree_leaves(real), strict=True):
            if type(one) is FakeTensor and value.nbytes <= _MOST_BATCH_BYTES:
                self._know(one, value, frozenset([FIRST_SAMPLES]))

    def follow(self, operation: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
        """Note what is known of the output of an operation that has just run."""
        kind = _effect_of(operation)
        if kind == "lift":
            if type(args[0]) is Tensor and type(out) is FakeTensor and args[0].nbytes <= _MOST_BYTES:
                self._know(out, args[0], frozenset())
                out.constant = None  # torch would look up copies of it in a table, and then not change their types
            return
        if kind == "view":
            return
        if kind == "write":
            if self._known:
                self._follow_write(operation, args, kwargs)
            return
        made = out if type(out) is FakeTensor else None
        if kind == "compare" and made is not None:
            assumed = _assumed(operation, args)
            if assumed is not None:
                with torch._C._DisableTorchDispatch():
                    self._know(made, torch.tensor(assumed), frozenset([FINITE]), is_uniform=True)
                return
        if kind == "compute" and not self._known:
            return
        if made is not None and _bytes_of(made) > _MOST_BYTES and kind != "compare":
            return
        if kind == "unknown" or (made is None and not isinstance(out, tuple | list)):
            return
        if kind == "random":
            if made is not None and made.numel() <= _MOST_DRAWN and self._given(args, kwargs) is not None:
                self._know(made, self._run(operation, args, kwargs), frozenset([DRAWN]))
            return
        given = self._given(args, kwargs)
        if given is None and kind == "choose":
            self._choose(operation, args, kwargs, out)
            return
        if given is None or (not given and kind != "make"):
            return
        if any(known.is_uniform for known in given):
            if made is not None and all(known.is_uniform or known.twin.numel() == 1 for known in given):
                self._follow_uniform(operation, args, kwargs, made, given)
            return
        because = frozenset().union(*(known.because for known in given))
        real = self._run(operation, args, kwargs)
        for one, value in zip(tree_leaves(out), tree_leaves(real), strict=True):
            if type(one) is FakeTensor and _bytes_of(one) <= _MOST_BYTES:
                self._know(one, value, because)

    def decide(
        self, operation: Any, args: Sequence[Any], kwargs: dict[str, Any], fake: Callable[[Tensor], FakeTensor]
    ) -> Any:
        """The result of an operation that depends on values, if they are known; otherwise NotImplemented.

        ``fake`` makes a fake tensor like a real one.
        """
        given = self._given(args, kwargs)
        if given is None or any(known.is_uniform for known in given):
            if operation is _aten.masked_select.default:
                return args[0].new_empty(self._num_chosen(args[1], args[0].shape))
            if operation is _aten.nonzero.default:
                return args[0].new_empty((self._num_chosen(args[0], args[0].shape), args[0].ndim), dtype=torch.int64)
        if not given:
            return NotImplemented
        if any(known.is_uniform for known in given) and operation is not _aten._local_scalar_dense.default:
            return NotImplemented
        because = frozenset().union(*(known.because for known in given))
        self.assume(*because)
        real = self._run(operation, args, kwargs)

        def faked(value: Tensor) -> FakeTensor:
            made = fake(value)
            self._know(made, value, because)
            return made

        return tree_map_only(Tensor, faked, real)

    def of(self, fake: Tensor) -> Tensor | None:
        """The value of a tensor that code wants to look at, None if it is not known; its assumptions are made."""
        known = self._of(fake)
        if known is None:
            return None
        self.assume(*known.because)
        with torch._C._DisableTorchDispatch():
            return known.value(fake).expand(fake.shape).detach()

    def positions(self, indices: Sequence[Tensor | None], fake: Callable[[Tensor], FakeTensor]) -> list[Any]:
        """The indices of an indexing with its masks replaced by the positions that they choose.

        A mask that is not known chooses every position, which is the most that it can choose.
        """
        chosen: list[Any] = []
        for index in indices:
            if index is None or index.dtype not in (torch.bool, torch.uint8):
                chosen.append(index)
                continue
            known = self._of(index)
            if known is None or known.is_uniform:
                num = self._num_chosen(index, index.shape)
                chosen += [index.new_empty(num, dtype=torch.int64) for _ in range(index.ndim)]
                continue
            self.assume(*known.because)
            with torch._C._DisableTorchDispatch():
                columns = [column.clone() for column in known.value(index).nonzero().unbind(1)]  # in own memory
            for column in columns:
                chosen.append(fake(column))
                self._know(chosen[-1], column, known.because)
        return chosen

    def _num_chosen(self, mask: Tensor, shape: Sequence[int]) -> int:
        """How many elements of a tensor of this ``shape`` a mask chooses; all of them if the mask is not known."""
        if (known := self._of(mask)) is None:
            self.assume(WHOLE)
            return math.prod(shape)
        self.assume(*known.because)
        with torch._C._DisableTorchDispatch():
            return int(known.value(mask).expand(tuple(shape)).count_nonzero().item())

    def _choose(self, operation: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
        """Give values to indices that the model chooses by numbers that nobody knows: experts, queries, classes."""
        indices = out if type(out) is FakeTensor else out[1]
        dim = kwargs.get("dim", args[_CHOOSES[operation]] if len(args) > _CHOOSES[operation] else None)
        if dim is None:
            dim = -1
            if args[0].ndim and operation is _aten.argmax.default:
                return  # over all elements
        if not args[0].ndim or _bytes_of(indices) > _MOST_BYTES:
            return
        num_choices = args[0].shape[dim]
        with torch._C._DisableTorchDispatch():
            if indices.ndim < args[0].ndim:
                chosen = torch.arange(indices.numel()).reshape(indices.shape)
            else:
                width = indices.shape[dim]
                moved = list(indices.shape)
                moved.append(moved.pop(dim))
                chosen = torch.arange(indices.numel()).reshape(moved)
                chosen = (chosen if self.is_even else chosen % width).movedim(-1, dim)
            if not self.is_even and indices.ndim < args[0].ndim:
                chosen = torch.zeros_like(chosen)
            chosen = (chosen % num_choices).to(indices.dtype)
        self._know(indices, chosen, frozenset([EVEN]))

    def _follow_uniform(
        self, operation: Any, args: Sequence[Any], kwargs: dict[str, Any], out: FakeTensor, given: Sequence[_Known]
    ) -> None:
        packet = operation._overloadpacket
        with torch._C._DisableTorchDispatch():
            is_zero = packet in _SUMS and not any(known.twin.any() for known in given)
        if torch.Tag.pointwise in operation.tags or packet in _REDUCES or is_zero:
            real = self._run(operation, args, kwargs)
            because = frozenset().union(*(known.because for known in given))
            with torch._C._DisableTorchDispatch():
                self._know(out, real.reshape(-1)[0].clone(), because, is_uniform=True)

    def _follow_write(self, operation: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """An operation that writes: into twins as well if all that it reads is known; otherwise they are lost."""
        given, written = self._given(args, kwargs), _written(operation, args, kwargs)
        is_random = torch.Tag.nondeterministic_seeded in operation.tags
        if given and written and not is_random and not any(known.is_uniform for known in given):
            because = frozenset().union(*(known.because for known in given))
            self._run(operation, args, kwargs)
            for leaf in written:
                address = leaf.untyped_storage()._cdata
                known = self._known[address]
                self._known[address] = _Known(known.storage, known.twin, False, because)
            return
        for leaf in written:
            self._known.pop(leaf.untyped_storage()._cdata, None)

    def _run(self, operation: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        def real(leaf: Any) -> Any:
            known = self._of(leaf) if type(leaf) is FakeTensor else None
            return known.value(leaf) if known is not None else leaf

        with torch._C._DisableTorchDispatch(), torch.no_grad():
            return operation(*tree_map(real, args), **tree_map(real, kwargs))

    def _given(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[_Known] | None:
        """The known values of each tensor among the arguments; None if something is not."""
        found: list[_Known] = []
        for leaf in tree_leaves((args, kwargs)) if kwargs else _leaves(args):
            if isinstance(leaf, Tensor):
                known = self._of(leaf)
                if known is None:
                    return None
                found.append(known)
        return found

    def _of(self, leaf: Any) -> _Known | None:
        if type(leaf) is Tensor:  # a real one, such as data that the workload holds
            return _Known(_nowhere, leaf, False, frozenset())
        if type(leaf) is not FakeTensor or leaf.layout is not torch.strided or not self._known:
            return None
        storage = leaf.untyped_storage()
        known = self._known.get(storage._cdata)
        if known is None or known.is_uniform or known.twin.untyped_storage().nbytes() >= storage.nbytes():
            return known
        return None  # the memory has grown: nobody knows what is in it

    def _know(self, fake: FakeTensor, real: Tensor, because: frozenset[str], *, is_uniform: bool = False) -> None:
        if real.is_meta:
            return  # such as a BatchNorm of a model that is built on the meta device
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            if not is_uniform:
                storage_bytes = fake.untyped_storage().nbytes()
                if fake.storage_offset() or fake.shape != real.shape or storage_bytes != _bytes_of(fake):
                    return
                twin = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype)
                real = twin.copy_(real)
        storage = fake.untyped_storage()
        address = storage._cdata
        reference = weakref.ref(storage, lambda gone: self._forget(address, gone))
        self._known[address] = _Known(reference, real, is_uniform, because)

    def _forget(self, address: int, gone: weakref.ref[Any]) -> None:
        known = self._known.get(address)
        if known is not None and known.storage is gone:
            del self._known[address]

    def assume(self, *because: str) -> None:
        """Note what the code that runs now lets us assume; ``DRAWN`` is noted as a draw instead."""
        self.varies |= not self.in_evaluation and not _VARYING.isdisjoint(because)
        for one in because:
            if one == DRAWN:
                self.has_drawn = True
            else:
                frame = calling_frame()
                self._note(one, frame.f_code.co_filename, frame.f_lineno)

    def cut(self, error: BaseException) -> None:
        """Note that an evaluation could not be traced beyond the place where this error happened."""
        frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
        shown = [place for place in frames if not place[0].startswith((*_HIDDEN, str(_HOME / "workloads")))]
        self._note(f"nothing is predicted after {type(error).__name__}", *(shown or frames)[-1])

    def _note(self, assumption: str, file: str, line: int) -> None:
        words = IN_EVALUATION * self.in_evaluation + assumption
        self._places.setdefault(words, {})[Path(file).name, line] = None


def _told(what: str, places: Sequence[tuple[str, int]]) -> str:
    (file, line), *others = places
    return f"{what} ({file}:{line}{f' and {len(others)} more' if others else ''})"


def calling_frame() -> FrameType:
    """The innermost frame of code that is neither torch's nor this package's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HIDDEN):
        frame = frame.f_back
    return frame


@cache
def depends_on_values(operation: Any) -> bool:
    """Whether the result, or its shape, can depend on the values of tensors."""
    tags = operation.tags
    return torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags


@cache
def takes_masks(operation: Any) -> bool:
    """Whether the second argument is a list of indices, which may be masks."""
    return operation in _MASKED


@cache
def _effect_of(operation: Any) -> str:
    """The effect of an operation on values.

    One of ``lift`` (from a real tensor), ``view``, ``write``, ``make`` (from no tensor), ``compare``, ``choose``,
    ``random``, ``unknown`` (memory as it is) or ``compute``.
    """
    if operation in _LIFTS:
        return "lift"
    if operation.is_view or not isinstance(operation, torch._ops.OpOverload):
        return "view"
    if operation._schema.is_mutable:
        return "write"
    if operation in _CHOOSES:
        return "choose"
    name = operation._overloadpacket.__name__
    if name.startswith(("empty", "new_empty")):
        return "unknown"
    if torch.Tag.nondeterministic_seeded in operation.tags:
        return "random"
    if operation in _WITH_ITSELF or operation in _WITH_INFINITY or operation in _CHECKS:
        return "compare"
    takes_tensors = any("Tensor" in str(argument.type) for argument in operation._schema.arguments)
    return "compute" if takes_tensors else "make"


def _assumed(operation: Any, args: Sequence[Any]) -> bool | None:
    """The outcome of a comparison that finds NaN or infinity, if it finds none; None for other comparisons."""
    if operation in _CHECKS:
        return _CHECKS[operation]
    first, second = args[:2]
    if operation in _WITH_INFINITY:
        return _WITH_INFINITY[operation] if isinstance(second, float) and math.isinf(second) else None
    return _WITH_ITSELF[operation] if first is second and first.is_floating_point() else None


def _written(operation: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[FakeTensor]:
    written: list[Any] = []
    for place, argument in enumerate(operation._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.append(args[place] if place < len(args) else kwargs.get(argument.name))
    return [leaf for leaf in tree_leaves(written) if type(leaf) is FakeTensor and leaf.layout is torch.strided]


def _leaves(args: Sequence[Any]) -> Any:
    for one in args:
        if type(one) is list or type(one) is tuple:
            yield from one
        else:
            yield one


def _bytes_of(tensor: Tensor) -> int:
    return tensor.numel() * tensor.itemsize
