"""A pack: trainings of one process whose models have the same frozen weights, and which pass through these together.

What a member computes in a pass with others is compared with what it computes alone: in its first passes, and then
less and less often. Outputs, gradients and the random numbers that were drawn must agree. A member that differs goes on
alone, in the same process. So a pack need not know what kind of model it trains.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from workloads.adapters.comparisons import Later, forget_after, num_noted
from workloads.parallel.forward_state.state import forward_state
from workloads.training.faults import HostFault
from workloads.training.memory.budget import SharedLimit
from workloads.training.packs.graphs import leaves_through, nodes_of
from workloads.training.packs.sharing import Sharing
from workloads.training.packs.sites import CannotJoin, Part, SharedTensors, Skeleton, joined
from workloads.training.packs.turns import Generators, Seat, Turn, Turns

TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}
"""By which an output or a gradient may differ from the one alone, as a share of its largest number, for the least exact
type that the pass computes with. Sums in another order differ by less; samples, weights or random numbers of another
member by far more."""
_NAME = "_scamp_member"


class Pack:
    """The members of one process. A member leaves when its training ends, and others may join at any time."""

    def __init__(self) -> None:
        self._turns = Turns(_make)
        self._shared = SharedTensors()
        self._skeletons: dict[bool, Skeleton] = {}  # of training, and of evaluations
        self.limit = SharedLimit()
        self.passes: dict[int, int] = {}
        """By the number of members in it, how many forward passes were made."""

    @property
    def num_others(self) -> int:
        """The number of members besides the one that asks."""
        return self._turns.num_seats - 1

    @contextmanager
    def member(self) -> Iterator[Member]:
        """A new member, whose turn it is; others go on when it waits for a pass, and at the end of the context."""
        with self._turns.seat() as seat:
            try:
                yield Member(self, seat)
            finally:
                if not self.num_others:  # nothing of the user's code is left in the process
                    self._shared, self._skeletons = SharedTensors(), {}

    def share(self, model: nn.Module) -> Sequence[tuple[object, nn.Parameter]]:
        """Let a model that is still on the host use the frozen weights of those before; returns what is new in it.

        Raises ``HostFault`` if somebody has changed these.
        """
        self._shared.expect_unchanged()
        return self._shared.share(model)

    def add(self, new: Sequence[tuple[object, nn.Parameter]]) -> None:
        """Let others use the ``new`` weights of a model, which are on its device."""
        self._shared.add(new)

    def sharing(self, model: nn.Module) -> Sharing:
        """The passes of a model with others in the mode in which it is."""
        return Sharing(model, self._skeleton_of)

    def _skeleton_of(self, model: nn.Module) -> Skeleton:
        skeleton = self._skeletons.get(model.training)
        if skeleton is None:
            present, model.__dict__["forward"] = model.__dict__["forward"], model.__dict__[_NAME].alone
            try:
                skeleton = self._skeletons[model.training] = Skeleton(model)
            finally:
                model.__dict__["forward"] = present
        return skeleton

    @property
    def is_unchanged(self) -> bool:
        """Whether the weights that all have in common are as they were."""
        return self._shared.are_unchanged

    def expect_unchanged(self) -> None:
        """Raises ``HostFault`` if weights that all have in common have changed."""
        self._shared.expect_unchanged()


class Member:
    """One training of a pack."""

    def __init__(self, pack: Pack, seat: Seat) -> None:
        self.pack, self._seat = pack, seat
        self._has_shared = self._is_in_graph = self._has_said = self._has_stepped = False
        self._present: Sharing | None = None  # that of the mode in which passes are made with others now
        self._evaluating: Sharing | None = None
        self._comparisons: list[_Comparison] = []
        self._compares: bool | None = None  # whether the passes until the next backward pass are compared
        self._has_gone_alone = False  # in one of these passes, whose part of the gradients is not known then
        self._outputs: list[Any] = []  # the nodes of autograd's graph in which these passes end
        self._new: Sequence[tuple[object, nn.Parameter]] = ()

    def sharing(self, fill: Callable[[nn.Module], None] | None) -> Callable[[nn.Module], None]:
        """A function that fills a new model as ``fill`` does, and lets it share frozen weights with the others."""

        def fill_and_share(model: nn.Module) -> None:
            if fill is not None:
                fill(model)
            self._new = self.pack.share(model)

        return fill_and_share

    def attach(self, model: nn.Module) -> None:
        """Let this model, which is on its device, make its passes with those of the other members."""
        self.model, self.alone = model, model.forward
        self.pack.add(self._new)
        self._training = self.pack.sharing(model)
        if any(getattr(parameter, "_post_accumulate_grad_hooks", None) for parameter in model.parameters()):
            self._training.go_alone("a hook changes gradients after they were summed")
        model.__dict__["forward"] = self._call
        model.__dict__[_NAME] = self
        self._frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]

    @contextmanager
    def step(self) -> Iterator[None]:
        """A training step, whose passes may be made with those of others; without any, they have a turn before it.

        Raises ``HostFault`` if the first one has changed the weights of all.
        """
        self._say_why()
        if not self._has_shared and self.pack.num_others:
            self.pack._turns.take_pass(self._seat, Turn(Generators.now()))
        self._present, self._has_shared = self._training, False
        try:
            yield
        finally:
            self._present, self._outputs = None, []
        if not self._has_stepped:
            self._has_stepped = True
            self.expect_unchanged()

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """The passes of an evaluation, which are made with those of others unless the model's mode for it has changed
        frozen weights: then nobody else may have a turn before it is over."""
        if not self._training.alone_because and self.pack.num_others and self.pack.is_unchanged:
            self._present = self._evaluating = self._evaluating or self._in_evaluation()
        try:
            yield
        finally:
            self._present = None

    def _in_evaluation(self) -> Sharing:
        """Its passes in evaluations."""
        sharing = self.pack.sharing(self.model)
        sharing.begin()
        if why := sharing.alone_because:
            print(f"evaluates without the other trials of its process: {why}", flush=True)
        return sharing

    def expect_unchanged(self) -> None:
        """Raises ``HostFault`` if what it has computed since it asked before may not be what it computes alone."""
        self._training.notice_changes()
        self.pack.expect_unchanged()
        if not self._training.is_whole:
            raise HostFault("its model has changed in a way that nothing had shown, so it trains alone")

    def _say_why(self) -> None:
        if self._training.alone_because and not self._has_said:
            self._has_said = True
            why = self._training.alone_because
            print(f"makes its passes without the other trials of its process: {why}", flush=True)

    def keep_what_trains(self) -> None:
        """Give parameters that were frozen and are not any more memory of their own, before a step writes to it."""
        if any(parameter.requires_grad for parameter in self._frozen):
            for parameter in self._frozen:
                if parameter.requires_grad:
                    parameter.data = parameter.data.clone()
            self._frozen = [parameter for parameter in self._frozen if not parameter.requires_grad]

    @property
    def _shares(self) -> Sharing | None:
        """How the next pass may be made with others: the first one is watched, to see what it changes."""
        sharing, trains = self._present, self._present is self._training
        if sharing is None or torch.is_grad_enabled() != trains or torch.is_inference_mode_enabled():
            return None
        state = forward_state(self.model)
        if state.is_known:
            sharing.begin()
        sharing.notice_changes()
        if state.is_known and (state.changed or state.statistics or state.attributes):
            self._training.go_alone("the forward pass changes the model")
        return sharing if state.is_known and not (sharing.alone_because or self._training.alone_because) else None

    def _call(self, *args: Any, **keywords: Any) -> Any:
        """The model's output."""
        sharing = self._shares
        awaited = ForwardPass.of(self, sharing, args, keywords) if sharing is not None else None
        if awaited is None:
            if sharing is not None:
                sharing.go_alone("it is called with something else than tensors with a row for each sample")
            output = self.alone(*args, **keywords)
        else:
            output = self._with_others(awaited)
        if self._present is self._training and torch.is_grad_enabled():
            self._outputs += nodes_of(tree_leaves(output))
        return output

    def _with_others(self, awaited: ForwardPass) -> Any:
        """The output of a pass that may be made with those of others."""
        before = awaited.generators
        output, num_members = self.pack._turns.take_pass(self._seat, awaited)
        if awaited.trains:
            self._has_shared = self._is_in_graph = True
        if num_members > 1:
            num_before = num_noted()
            output = tree_map(lambda leaf: leaf.compute() if isinstance(leaf, Later) else leaf, output)
            if self._is_compared(awaited):
                return self._compared(awaited, before, output, num_before)
        elif awaited.trains:
            self._has_gone_alone = True
        return output

    def _is_compared(self, awaited: ForwardPass) -> bool:
        """Whether a pass is compared: of those from which one backward pass begins, all or none."""
        if not awaited.trains:
            return awaited.sharing.is_compared()
        if self._compares is None:
            self._compares = awaited.sharing.is_compared()
        return self._compares

    def _compared(self, awaited: ForwardPass, before: Generators, output: Any, num_before: int) -> Any:
        """The output, or the one that the member computes alone if they differ; of loss functions that the model calls
        itself, those are noted that it has called for what is returned."""
        others, sharing, num_now = _drawn_elsewhere(), awaited.sharing, num_noted()
        try:
            with saved_tensors_hooks(_dropped, _dropped):  # those of all members are in memory, and there is no room
                alone = awaited.repeated(before)
        except RuntimeError as error:  # as of torch.func, which allows no such hooks
            sharing.go_alone(f"its pass cannot be repeated: {error}")
            return self._instead(awaited, before, num_before)
        forget_after(num_now)
        if _drawn_elsewhere() != others:
            why = "a part of it draws from Python's or NumPy's generators"
        elif not torch.equal(torch.get_rng_state(), awaited.generators.torch_state):
            why = "it draws other random numbers"
        else:
            why = _difference(output, alone, awaited.tolerance)
        if not why:
            comparison = _Comparison(awaited, before)
            if awaited.trains:
                self._comparisons.append(comparison)
            return comparison.watched(output)
        if sharing.groups:  # first no operations for the adapters of all, and then nothing in common
            sharing.groups = False
            sharing.begin_again()
        else:
            sharing.go_alone(f"its model would compute something else with them: {why}")
        return self._instead(awaited, before, num_before)

    def _instead(self, awaited: ForwardPass, before: Generators, num_noted_before: int) -> Any:
        """The output of a pass alone, in place of one with others."""
        self._has_gone_alone |= awaited.trains
        forget_after(num_noted_before)
        return awaited.repeated(before)

    def backward(self, loss: Tensor) -> None:
        """The backward pass from ``loss``, with those of others.

        Raises ``HostFault`` if the gradients differ from those alone.
        """
        is_in_graph, self._is_in_graph = self._is_in_graph, False
        outputs, self._outputs = self._outputs, []
        comparisons, self._comparisons = ([] if self._has_gone_alone else self._comparisons), []
        self._compares, self._has_gone_alone = None, False
        if self._present is None or not is_in_graph or not loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]
            return
        if leaves_through(loss, outputs):
            raise HostFault(
                "its loss depends on parameters by something else than what the model returns, such as a penalty on "
                "them or hidden values that were kept, so it trains alone"
            )
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad] if comparisons else []
        before = [None if parameter.grad is None else parameter.grad.clone() for parameter in trained]
        self.pack._turns.take_pass(self._seat, BackwardPass(loss, Generators.now()))
        if not comparisons:
            return
        after = Generators.now()
        gradients = [comparison.gradients(trained) for comparison in comparisons]
        after.restore()
        alone = [_sum_of(terms) for terms in zip(before, *gradients, strict=True)]
        present = [_or_zero(parameter, parameter.grad) for parameter in trained]
        expected = [_or_zero(*pair) for pair in zip(trained, alone, strict=True)]
        if why := _difference(present, expected, comparisons[0].awaited.tolerance):
            raise HostFault(f"in passes with other trials its gradients would be others ({why}), so it trains alone")


def backward(model: nn.Module, loss: Tensor) -> None:
    """The backward pass from ``loss``, with those of other members if ``model`` is that of a member of a pack."""
    member = model.__dict__.get(_NAME)
    if isinstance(member, Member):
        member.backward(loss)
    else:
        loss.backward()  # type: ignore[no-untyped-call]


@contextmanager
def evaluation(model: nn.Module) -> Iterator[None]:
    """The passes of an evaluation, with those of other members if ``model`` is that of a member of a pack."""
    member = model.__dict__.get(_NAME)
    with member.evaluation() if isinstance(member, Member) else nullcontext():
        yield


@dataclass(slots=True, eq=False)
class ForwardPass:
    """A member's samples, on their way through the model. ``low`` is the type of autocast, if it is on.

    ``trains``: a backward pass may follow. Evaluations are made first, so that all members go on training together.
    """

    member: Member
    sharing: Sharing
    trains: bool
    args: Any
    keywords: Any
    num_samples: int
    key: object
    low: torch.dtype | None
    generators: Generators

    @classmethod
    def of(cls, member: Member, sharing: Sharing, args: Any, keywords: Any) -> ForwardPass | None:
        """The pass, or None if its inputs are no batch of samples."""
        leaves, spec = tree_flatten((args, keywords))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if not tensors or any(not tensor.ndim or len(tensor) != len(tensors[0]) for tensor in tensors):
            return None
        kinds = [
            (leaf.shape[1:], leaf.dtype, leaf.requires_grad) if isinstance(leaf, Tensor) else repr(leaf)
            for leaf in leaves
        ]
        device = tensors[0].device.type
        low = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        trains = torch.is_grad_enabled()
        key = spec, tuple(kinds), low, trains
        return cls(member, sharing, trains, args, keywords, len(tensors[0]), key, low, Generators.now())

    @property
    def rank(self) -> int:
        """Its place in the order of passes."""
        return int(self.trains)

    @property
    def tolerance(self) -> float:
        """The share of ``TOLERANCES`` by which its results may differ from those alone."""
        types = {self.low, *(parameter.dtype for parameter in self.member.model.parameters())}
        return max(TOLERANCES.get(each, 0.0) for each in types if each is not None)

    def repeated(self, before: Generators) -> Any:
        """The output of the member's model alone, which begins with the generators as they were ``before``."""
        before.restore()
        device = next(leaf.device.type for leaf in tree_leaves((self.args, self.keywords)) if isinstance(leaf, Tensor))
        with torch.autocast(device, self.low, enabled=self.low is not None):
            return self.member.alone(*self.args, **self.keywords)


@dataclass(slots=True, eq=False)
class BackwardPass:
    """A member's loss, from which a backward pass begins."""

    loss: Tensor
    generators: Generators
    rank: int = 2
    key: object = "backward"


def _make(seats: Sequence[Seat]) -> None:
    """Make the passes that the seats await, which are of one kind."""
    if isinstance(seats[0].awaited, BackwardPass):
        try:
            torch.autograd.backward([seat.awaited.loss for seat in seats if isinstance(seat.awaited, BackwardPass)])
        except Exception as error:  # of one of them, but the graph is gone for all; its cause may be too little memory
            why = str(error) if isinstance(error, CannotJoin) else f"{type(error).__name__}: {error}"
            raise HostFault(f"a backward pass with other trials fails, so it trains alone: {why}") from error
        return
    passes = [seat.awaited for seat in seats if isinstance(seat.awaited, ForwardPass)]
    pack = passes[0].member.pack
    pack.passes[len(passes)] = pack.passes.get(len(passes), 0) + 1
    if len(passes) > 1:
        try:
            outputs = _pass_through(passes)
        except Exception as error:
            why = str(error) if isinstance(error, CannotJoin) else f"{type(error).__name__}: {error}"
        else:
            for seat, output in zip(seats, outputs, strict=True):
                seat.result = output, len(passes)
            return
    else:
        why = ""
    for seat, each in zip(seats, passes, strict=True):
        each.generators.restore()
        try:
            seat.result = each.member.alone(*each.args, **each.keywords), 1
        except Exception as error:
            seat.error = error
        each.generators = Generators.now()
    if why and not any(seat.error for seat in seats):  # otherwise it was an error of that member, which ends
        for each in passes:
            each.sharing.go_alone(why)


def _pass_through(passes: Sequence[ForwardPass]) -> Sequence[Any]:
    """The output of each of several members, of one pass through what they have in common."""
    parts = [Part(*each.sharing.sites(), each.num_samples, each.generators) for each in passes]
    args, keywords = joined([(each.args, each.keywords) for each in passes])
    outputs = passes[0].sharing.skeleton.forward(parts, args, keywords)
    for each, part in zip(passes, parts, strict=True):
        each.generators = part.generators
    return outputs


@dataclass(slots=True)
class _Comparison:
    """A pass of several whose output is that of the member's alone, and the gradients that arrive at its output."""

    awaited: ForwardPass
    before: Generators
    _arrived: dict[int, Tensor] = field(default_factory=dict)

    def watched(self, output: Any) -> Any:
        """The output, with tensors whose gradients are noted: only those that do not come from others of them."""
        leaves, spec = tree_flatten(output)
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                leaves[place] = leaf.view_as(leaf)
                leaves[place].register_hook(_noting(self._arrived, place))
        return tree_unflatten(leaves, spec)

    def gradients(self, parameters: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """The gradients that the parameters have alone, for the same gradients of the output."""
        awaited = self.awaited
        args, keywords = tree_map(_detached, (awaited.args, awaited.keywords))
        leaves = tree_leaves(replace(awaited, args=args, keywords=keywords).repeated(self.before))
        places = [place for place in self._arrived if leaves[place].requires_grad]
        if not places:
            return [None] * len(parameters)
        arrived = [self._arrived[place] for place in places]
        return torch.autograd.grad([leaves[p] for p in places], list(parameters), arrived, allow_unused=True)


def _detached(leaf: Any) -> Any:
    return leaf.detach().requires_grad_(leaf.requires_grad) if isinstance(leaf, Tensor) else leaf


def _dropped(value: Any) -> Any:
    """Nothing, in place of a tensor that a backward pass would need."""
    return None


def _drawn_elsewhere() -> object:
    """A value that changes when anybody draws from Python's or NumPy's generators."""
    numpy_state: Any = np.random.get_state(legacy=False)
    return random.getstate(), numpy_state["state"]["pos"], numpy_state["state"]["key"].tobytes()


def _noting(arrived: dict[int, Tensor], place: int) -> Callable[[Tensor], None]:
    def note(gradient: Tensor) -> None:
        arrived[place] = arrived[place] + gradient if place in arrived else gradient

    return note


def _or_zero(parameter: Tensor, gradient: Tensor | None) -> Tensor:
    return torch.zeros_like(parameter) if gradient is None else gradient


def _sum_of(terms: Sequence[Tensor | None]) -> Tensor | None:
    present = [term for term in terms if term is not None]
    return torch.stack(present).sum(0) if len(present) > 1 else next(iter(present), None)


def _difference(shared: Any, other: Any, tolerance: float) -> str:
    """How two outputs differ by more than rounding, in words; empty if they do not."""
    leaves, spec = tree_flatten(shared)
    expected, other_spec = tree_flatten(other)
    if spec != other_spec:
        return "it has another structure"
    pairs = [pair for pair in zip(leaves, expected, strict=True) if any(isinstance(leaf, Tensor) for leaf in pair)]
    return next((why for mine, alone in pairs if (why := _difference_of(mine, alone, tolerance))), "")


def _difference_of(shared: Any, other: Any, tolerance: float) -> str:
    if not isinstance(shared, Tensor) or not isinstance(other, Tensor) or shared.shape != other.shape:
        return "it has another shape"
    mine, expected = shared.detach().double(), other.detach().double()
    finite = expected.isfinite()
    if not torch.equal(finite, mine.isfinite()):
        return "other numbers are finite"
    if not finite.any():
        return ""
    largest, gap = expected[finite].abs().max().item(), (mine - expected)[finite].abs().max().item()
    if gap <= tolerance * largest:
        return ""
    return f"by {gap:.3g}, where numbers are up to {largest:.3g}"
