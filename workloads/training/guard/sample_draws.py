"""Draws the random numbers of a loss for each sample by itself, so that losses of two divisions can be compared.

A loss that draws noise draws other noise when its batch is divided otherwise. While ``SampleDraws`` is active each
operation that draws gets its numbers from seeds: the rows that belong to a sample of the micro-batch from one of this
sample, whatever other samples are there, and what belongs to no sample from one that all micro-batches share. So a
loss that is a mean over samples has one value again. Whether rows belong to samples shows in the sizes that are drawn,
which must grow with their number, or be the same for any: otherwise nothing can be compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from scamp.workload.seeds import drawn_from, mixed, seed_everything
from workloads.protocol import Batch, Workload

Loss = Callable[..., Any]
_NEXT, _SHARED = -1, -2  # what seeds are mixed with; samples have numbers from 0


class SampleDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Active while ``loss`` is called with micro-batches of these samples, one after the other, and in their backward
    passes.

    Generators are seeded with ``seed`` before each call. The next number of a generator follows from its state alone:
    what is recomputed draws the same numbers again. ``shared`` are operations with their sizes whose rows belong to no
    sample although as many are drawn.
    """

    def __init__(
        self,
        workload: Workload,
        seed: tuple[int, ...],
        parts: Sequence[Sequence[int]],
        shared: Set[object] = frozenset(),
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._workload, self._seed, self._parts, self._shared = workload, seed, list(parts), shared
        self._samples: Sequence[int] = ()
        self._num_calls = 0
        self._after: object = None
        self._drawn: list[_Drawn] = []
        self.draws_backward = False
        """Whether a backward pass draws numbers, as gradients with noise do: each micro-batch adds its own."""

    def around(self, loss: Loss) -> Loss:
        """The loss that says which samples come."""

        @wraps(loss)
        def of_samples(model: torch.nn.Module, batch: Batch) -> Any:
            self._look_behind()
            seed_everything(self._seed, self._workload)
            self._samples = self._parts[self._num_calls % len(self._parts)]
            self._num_calls += 1
            self._drawn.append(_Drawn())
            value = loss(model, batch)
            self._drawn[-1].after = self._after = drawn_from(self._workload)
            return value

        return of_samples

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._look_behind()
        self._after = None

    def _look_behind(self) -> None:
        """Look at the generators after a backward pass."""
        if self._after is not None and drawn_from(self._workload) != self._after:
            self.draws_backward = True

    def draws_like(self, other: SampleDraws) -> bool:
        """Whether every micro-batch of both has drawn as much for each sample, and the same for all samples."""
        calls = [*self._drawn, *other._drawn]
        return all(call.after == calls[0].after and call.kinds == calls[0].kinds for call in calls)

    def shared_with(self, other: SampleDraws) -> frozenset[object]:
        """The operations that draw as much for any number of samples, with their sizes."""
        operations = zip(*(call.sizes for call in (*self._drawn, *other._drawn)), strict=False)
        return frozenset(sizes[0] for sizes in operations if len(set(sizes)) == 1)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        generator = kwargs.get("generator") or _generator_of(args, kwargs)
        state = hashlib.blake2b(generator.get_state().numpy().tobytes(), digest_size=7).digest()
        seed = int.from_bytes(state, "little")
        try:
            return self._draw(func, args, kwargs, generator, seed)
        finally:
            generator.manual_seed(mixed(seed, _NEXT) % 2**63)

    def _draw(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], generator: Any, seed: int) -> Any:
        name, size, num = func._overloadpacket.__name__, _size_of(func, args), len(self._samples)
        if (name == "randperm" and args[0] == num) or (name == "randint" and num in args[:2] and size == (num,)):
            self._note((name, *size), "with whom each sample is mixed, which is no property of it")
            return func(*args, **kwargs).copy_(torch.arange(num))
        rows, rest = divmod(size[0], num) if size and num else (0, 1)
        if rest or not rows or (name, *size) in self._shared:
            self._note((name, *size), (name, size))
            generator.manual_seed(mixed(seed, _SHARED) % 2**63)
            return func(*args, **kwargs)
        self._note((name, *size), (name, rows, *size[1:]))
        parts = []
        for place, sample in enumerate(self._samples):
            generator.manual_seed(mixed(seed, sample) % 2**63)
            parts.append(func(*_rows(func, args, size, place * rows, rows), **kwargs))
        if func._schema.is_mutable:
            return args[0]
        if isinstance(parts[0], Tensor):
            return torch.cat(parts)
        return type(parts[0])(map(torch.cat, zip(*parts, strict=True)))

    def _note(self, size: object, kind: object) -> None:
        if self._drawn[-1].after is None:  # in a backward pass only what is recomputed draws, or it is noticed there
            self._drawn[-1].sizes.append(size)
            self._drawn[-1].kinds.append(kind)


@dataclass(slots=True)
class _Drawn:
    """Draws of a call: sizes of each operation, what they are made of, and the generators at the end."""

    sizes: list[object] = field(default_factory=list)
    kinds: list[object] = field(default_factory=list)
    after: object = None


def _generator_of(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The generator that an operation draws from if none is given."""
    tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
    device = tensors[0].device if tensors else torch.device(kwargs.get("device") or "cpu")
    if device.type == "cuda":
        return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
    return torch.default_generator


def _size_place(func: Any) -> int | None:
    """Place of the argument that is the size of the result, of an operation that makes a tensor."""
    return next((place for place, argument in enumerate(func._schema.arguments) if argument.name == "size"), None)


def _size_of(func: Any, args: Sequence[Any]) -> tuple[int, ...]:
    """The size of what an operation draws."""
    place = _size_place(func)
    if place is not None and len(args) > place:
        return tuple(args[place])
    return max((tuple(leaf.shape) for leaf in tree_leaves(args) if isinstance(leaf, Tensor)), key=len, default=())


def _rows(func: Any, args: Sequence[Any], size: Sequence[int], start: int, num: int) -> list[Any]:
    """Arguments of an operation for these rows alone; in place, it then writes them."""
    parts = list(args)
    place = _size_place(func)
    if place is not None and len(args) > place:
        parts[place] = [num, *size[1:]]
    return [
        tree_map_only(Tensor, lambda leaf: leaf[start : start + num] if leaf.shape[:1] == size[:1] else leaf, part)
        for part in parts
    ]
