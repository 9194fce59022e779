"""The parts of a model in which the members of a pack differ, and the pass of all members through what is left.

A *site* is a module that has parameters of its own to train, with the frozen ones that it is built around: a linear
layer with its adapter, a head. Sites are found by which parameters train; no kind of adapter is known here. Everything
else is the *skeleton*: frozen, equal in all members, and called once for the samples of all of them. A site is called
once for each member, with its samples and its random numbers. What a site does first to its input with frozen weights,
such as the linear layer under an adapter, is done once for all.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from workloads.adapters.comparisons import Later, comparing_later
from workloads.training.faults import HostFault
from workloads.training.packs.low_rank import LowRank, adapted, low_rank_of
from workloads.training.packs.settings import plain_attributes
from workloads.training.packs.turns import Generators

_OURS = "_scamp_"  # names of attributes that users do not know


class CannotJoin(Exception):
    """Members of this kind cannot pass through one model together; the message says why."""


def sites_of(model: nn.Module) -> list[str]:
    """Paths of the sites of a model, none inside another.

    Several modules that train as a whole, beside frozen ones in the same module, are one site with these. So a low-rank
    pair belongs to the layer that it adapts, and its width is nobody else's business.
    """
    kinds = {path: _kinds(module) for path, module in model.named_modules(remove_duplicate=False)}
    paths: list[str] = []

    def visit(path: str, module: nn.Module) -> None:
        trains, is_frozen = kinds[path]
        if not trains:
            return
        children = [(f"{path}.{name}" if path else name, child) for name, child in module.named_children()]
        own_trains = any(parameter.requires_grad for parameter in module.parameters(recurse=False))
        of_children = [kinds[child_path] for child_path, _ in children]
        is_pair = of_children.count((True, False)) > 1 and (True, True) not in of_children and path
        has_list = any(kinds[child_path][0] and _is_container(child) for child_path, child in children) and not all(
            _is_container(child) for _, child in children
        )
        if not is_frozen or own_trains or is_pair or (has_list and path and (True, True) not in of_children):
            paths.append(path)
            return
        for child_path, child in children:
            visit(child_path, child)

    visit("", model)
    return paths


def _is_container(module: nn.Module) -> bool:
    """Whether others call its parts one by one, as those of a list."""
    return type(module).forward is nn.Module.forward


def _kinds(module: nn.Module) -> tuple[bool, bool]:
    """Whether any parameter of a module trains, and whether any is frozen."""
    trains = {parameter.requires_grad for parameter in module.parameters()}
    return True in trains, False in trains


class SharedTensors:
    """Frozen parameters by their contents: equal ones have the same memory."""

    def __init__(self) -> None:
        self._tensors: dict[object, tuple[Tensor, int]] = {}  # with the sum that they had

    def share(self, model: nn.Module) -> Sequence[tuple[object, nn.Parameter]]:
        """Let the model's frozen parameters use the memory of equal ones of the models before.

        Called before the model moves to its device, so that they take no memory there. Returns the others with their
        contents, for ``add``.
        """
        others: list[tuple[object, nn.Parameter]] = []
        for parameter in model.parameters():
            if not parameter.requires_grad:
                contents = _contents(parameter)
                if contents in self._tensors:
                    parameter.data = self._tensors[contents][0]
                else:
                    others.append((contents, parameter))
        return others

    def add(self, others: Sequence[tuple[object, nn.Parameter]]) -> None:
        """Let later models, and each other, use the memory of these parameters, too."""
        for contents, parameter in others:
            parameter.data = self._tensors.setdefault(contents, (parameter.data, _sum_of(parameter)))[0]

    @property
    def are_unchanged(self) -> bool:
        """Whether nobody has written to the memory of all."""
        return all(_sum_of(tensor) == before for tensor, before in self._tensors.values())

    def expect_unchanged(self) -> None:
        """Raises ``HostFault`` if anybody has written to the memory of all."""
        if not self.are_unchanged:
            raise HostFault(
                "one of the trials that share its process has changed weights that are frozen in all of them, so it "
                "trains alone"
            )


def _sum_of(tensor: Tensor) -> int:
    """The sum of a tensor's bytes, as integers as wide as there are: as fast as they can be read."""
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
    is_aligned = flat.numel() % 8 == flat.storage_offset() % 8 == 0
    wide = flat.view(torch.int64) if is_aligned else flat
    return int(wide.sum(dtype=torch.int64))


def _contents(tensor: Tensor) -> object:
    plain = tensor.detach().contiguous().view(-1).view(torch.uint8).cpu().numpy().data
    return tensor.shape, tensor.dtype, tensor.stride(), hashlib.sha256(plain).digest()


@dataclass(slots=True, eq=False)
class Part:
    """A member in a pass of several: the modules at its sites, those of them that are low-rank adapters, and its number
    of samples."""

    modules: Mapping[str, nn.Module]
    adapters: Mapping[str, LowRank | None]
    num_samples: int
    generators: Generators


@dataclass(slots=True)
class _Crowd:
    """The members of the pass that runs."""

    parts: Sequence[Part] = ()

    def split(self, leaf: Any) -> Sequence[Any]:
        """The input of each member: its rows of a tensor with rows for all samples, or else the whole."""
        if isinstance(leaf, Later):
            return [
                Later(leaf.function, *arguments) for arguments in _rows(*tree_flatten((leaf.args, leaf.keywords)), self)
            ]
        total = sum(part.num_samples for part in self.parts)
        if not isinstance(leaf, Tensor) or not leaf.ndim or len(leaf) % total:
            return [leaf] * len(self.parts)
        rows = len(leaf) // total
        sizes = [part.num_samples * rows for part in self.parts]
        return torch.split(leaf, sizes)  # one operation, backward, too


class Skeleton:
    """The common parts of the members' models, as a model in whose sites the modules of each member are called."""

    def __init__(self, model: nn.Module) -> None:
        self._crowd = _Crowd()
        self._sites: dict[str, Site] = {}
        self.version = 0
        """It grows when a model brings sites that no member had before."""
        # Nothing that a member does to its own model changes this one, but what it does to the memory of all.
        parameters: dict[int, Any] = {
            id(each): nn.Parameter(each.data, requires_grad=False)
            if type(each) is nn.Parameter and not each.requires_grad
            else each  # it trains, or is of a library's own class, such as those of quantized layers
            for each in model.parameters()
        }
        ours = {id(value): None for name, value in model.__dict__.items() if name.startswith(_OURS)}
        self.model = copy.deepcopy(model, parameters | ours)
        self._outline = _outline(model, sites_of(model))

    def add(self, model: nn.Module) -> None:
        """Let the model's sites be sites of all members. Raises ``CannotJoin`` if it differs outside of them."""
        sites = _outermost([*self._sites, *sites_of(model)])
        if sites == [""]:
            of_root = [name for name, each in model.named_parameters(recurse=False) if each.requires_grad]
            if not of_root or all(each.requires_grad for each in model.parameters()):
                raise CannotJoin("nothing in the model is frozen that several could share")
            raise CannotJoin(
                f"parameters of the model itself train ({', '.join(of_root)}): put them into a module in it, and what "
                "is frozen can be shared"
            )
        if hooked := next((path for path, each in model.named_modules() if _has_hooks(each, path, sites)), None):
            raise CannotJoin(f"a hook of {hooked or 'the model'} would get the samples of all")
        outline = _outline(model, sites)
        before = {path: value for path, value in self._outline.items() if not _is_inside(path, sites)}
        for path in (*before, *outline):
            if before.get(path) != outline.get(path):
                raise CannotJoin(f"the models of the members differ in {path or 'their class'}")
        self._outline = before
        for path in sites:
            if path not in self._sites:
                self.version += 1
                self._sites[path] = site = Site(path, self._crowd)
                owner, _, name = path.rpartition(".")
                self.model.get_submodule(owner)._modules[name] = site
        self._sites = {path: self._sites[path] for path in sites}

    def fits(self, model: nn.Module) -> bool:
        """Whether the model has still outside of sites what it had when it was added."""
        return _outline(model, list(self._sites)) == self._outline

    def modules_of(self, model: nn.Module) -> dict[str, nn.Module]:
        """The model's own modules at the sites, by path."""
        modules = {path: model.get_submodule(path) for path in self._sites}
        for module in modules.values():
            for child in _frozen_parts(module):
                if not isinstance(child.__dict__.get("forward"), _Precomputed):
                    child.__dict__["forward"] = _Precomputed(child)
        return modules

    def forward(self, parts: Sequence[Part], args: Any, keywords: Any) -> Sequence[Any]:
        """Call the skeleton with the samples of all parts; returns the output of each part."""
        self._crowd.parts = parts
        total = sum(part.num_samples for part in parts)
        try:
            with comparing_later():
                leaves, spec = tree_flatten(self.model(*args, **keywords))
            if any(isinstance(leaf, Tensor) and (not leaf.ndim or len(leaf) != total) for leaf in leaves):
                raise CannotJoin("the model returns a tensor without a row for each sample")
            return _rows(leaves, spec, self._crowd)
        finally:
            self._crowd.parts = ()


def _has_hooks(module: nn.Module, path: str, sites: Sequence[str]) -> bool:
    if _is_inside(path, sites):
        return False
    return any((module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks))


def _rows(leaves: Sequence[Any], spec: Any, crowd: _Crowd) -> list[Any]:
    """The structure of each member, with its part of each leaf."""
    columns = [crowd.split(leaf) for leaf in leaves]
    return [tree_unflatten([column[place] for column in columns], spec) for place in range(len(crowd.parts))]


def _outermost(paths: Sequence[str]) -> list[str]:
    """The paths that are not inside another, each once."""
    return [path for path in dict.fromkeys(paths) if not any(_is_inside(path, [o]) for o in paths if o != path)]


def _is_inside(path: str, sites: Sequence[str]) -> bool:
    return any(site == "" or path == site or path.startswith(f"{site}.") for site in sites)


def _outline(model: nn.Module, sites: Sequence[str]) -> dict[str, object]:
    """Everything that decides what the modules outside of the sites compute, as far as it shows: by path the class,
    plain attributes, and which memory their parameters have."""
    outline: dict[str, object] = {}
    for path, module in model.named_modules():
        if _is_inside(path, sites):
            continue
        outline[path] = type(module)
        outline |= {f"{path}.{name}": value for name, value in plain_attributes(module)}
        for name, parameter in module.named_parameters(recurse=False):
            outline[f"{path}.{name}"] = parameter.data_ptr()
        for name, buffer in module.named_buffers(recurse=False):
            outline[f"{path}.{name}"] = _contents(buffer)
    return outline


def adapters_in(modules: Mapping[str, nn.Module]) -> dict[str, LowRank | None]:
    """Those of a model's modules at sites that are low-rank adapters; None for a layer that has none."""
    adapters: dict[str, LowRank | None] = {}
    for path, module in modules.items():
        frozen = list(_frozen_parts(module))
        if frozen == [module]:
            adapters[path] = None
        elif adapter := low_rank_of(module, frozen[0]) if len(frozen) == 1 else None:
            adapters[path] = adapter
    return adapters


def _identity_of(module: nn.Module) -> object:
    """Equal for modules of the same class with the same memory."""
    return type(module), tuple(parameter.data_ptr() for parameter in module.parameters())


def _frozen_parts(module: nn.Module) -> Iterator[nn.Module]:
    """The largest parts of a site's module that have parameters, all of them frozen; it may be one itself."""
    trains, is_frozen = _kinds(module)
    if is_frozen and not trains:
        yield module
    elif trains and is_frozen:
        for child in module.children():
            yield from _frozen_parts(child)


class _Precomputed:
    """The ``forward`` of a frozen module in a site, which is called once with the samples of all members, if each of
    them calls it first with what the site was called with."""

    def __init__(self, module: nn.Module) -> None:
        self._alone: Callable[..., Any] = module.forward
        self._identity = _identity_of(module)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        call = _SiteCall.current
        if call is None or keywords or len(args) != 1 or args[0] is not call.mine:
            return self._alone(*args, **keywords)
        return call.shared(self._identity, self._alone)

    def __deepcopy__(self, memo: Any) -> _Precomputed:
        return self


@dataclass(slots=True, eq=False)
class _SiteCall:
    """One call of a site in a pass of several: ``mine`` is the input of the member whose module runs, at ``place``."""

    every: Tensor
    crowd: _Crowd
    mine: Any = None
    place: int = 0
    outputs: dict[object, Any] = field(default_factory=dict)
    current: ClassVar[_SiteCall | None] = None

    def shared(self, identity: object, forward: Callable[..., Any]) -> Any:
        """The member's part of what the frozen module returns for the input of all."""
        if identity not in self.outputs:
            self.outputs[identity] = _rows(*tree_flatten(forward(self.every)), self.crowd)
        return self.outputs[identity][self.place]


class Site(nn.Module):
    """Calls the modules that the members of a pass have in this place, each with its own samples."""

    def __init__(self, path: str, crowd: _Crowd) -> None:
        super().__init__()
        self.path, self.crowd = path, crowd

    def forward(self, *args: Any, **keywords: Any) -> Any:
        """The outputs of the members' modules, one after the other along the first dimension."""
        parts = self.crowd.parts
        if not parts:
            raise CannotJoin("the model computes a part of its forward pass again, as gradient checkpointing does")
        if len(args) == 1 and not keywords and all(self.path in part.adapters for part in parts):
            adapters = [part.adapters[self.path] for part in parts]
            bases = [
                adapter.base if adapter is not None else part.modules[self.path]
                for part, adapter in zip(parts, adapters, strict=True)
            ]
            if any(adapters) and len(set(map(_identity_of, bases))) == 1:
                return self._adapted(args[0], adapters, bases[0])
        inputs = _rows(*tree_flatten((args, keywords)), self.crowd)
        call = _SiteCall(args[0], self.crowd) if args and isinstance(args[0], Tensor) else None
        outputs = []
        for place, (part, (own_args, own_keywords)) in enumerate(zip(self.crowd.parts, inputs, strict=True)):
            if call is not None:
                call.mine, call.place = own_args[0], place
            _SiteCall.current = call
            torch.set_rng_state(part.generators.torch_state)
            try:
                outputs.append(part.modules[self.path](*own_args, **own_keywords))
            finally:
                _SiteCall.current = None
                part.generators = replace(part.generators, torch_state=torch.get_rng_state())
        return joined(outputs)

    def _adapted(self, x: Tensor, adapters: Sequence[LowRank | None], base: nn.Module) -> Tensor:
        """Its output where all modules are low-rank adapters of one layer, in fewer operations."""
        crowd = self.crowd
        states = [part.generators.torch_state for part in crowd.parts]
        output: Tensor = base(x)
        output = output + adapted(x, crowd.split(x), adapters, states)
        for part, state in zip(crowd.parts, states, strict=True):
            part.generators = replace(part.generators, torch_state=state)
        return output


def joined(outputs: Sequence[Any]) -> Any:
    """Equal structures of tensors, concatenated along the first dimension. Raises ``CannotJoin`` for others."""
    flat = [tree_flatten(output) for output in outputs]
    spec = flat[0][1]
    if any(other != spec for _, other in flat):
        raise CannotJoin("a part of the model returns something else for each member")
    columns = list(zip(*(each for each, _ in flat), strict=True))
    return tree_unflatten([_joined_leaf(column) for column in columns], spec)


def _joined_leaf(column: Sequence[Any]) -> Any:
    if all(isinstance(leaf, Tensor) and leaf.ndim for leaf in column):
        if len({leaf.shape[1:] for leaf in column}) > 1:
            raise CannotJoin("a part of the model returns tensors of different sizes for the members")
        return torch.cat(list(column))
    if any(isinstance(leaf, Tensor) for leaf in column) or any(leaf != column[0] for leaf in column):
        raise CannotJoin("a part of the model returns something else for each member")
    return column[0]
