"""One model in fake mode, with the layout applied or not, and with all blocks or a few."""

from __future__ import annotations

import contextlib
import gc
import random
from typing import Any, Self
from weakref import ref

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from estimators.model import INDIVISIBLE, Divisions, Layout
from estimators.peaks.depth import TRACED_BLOCKS
from estimators.tracing.block_watch import BlockWatch
from estimators.tracing.blocks import are_equal, container_of, lengthen, shorten
from estimators.tracing.fake_gang import fake_mesh, groups_of
from estimators.tracing.recorder import Recorder
from estimators.tracing.session.modes import FakeMode, NoInit, deferred_garbage
from estimators.tracing.session.outlines import outlines_of, shape_of
from estimators.tracing.session.recipe import Recipe
from estimators.tracing.session.watched_optimizer import held_by
from estimators.tracing.stand_ins import stand_ins
from estimators.traits import Traits

UNEVEN = 2**16
"""The draw in which a model always makes the same choices."""
ENDS = {2**16 + 1: 0.0, 2**16 + 2: 1 - 2.0**-24}
"""Draws of the smallest and of the largest number between 0 and 1, by which layers are all dropped or all kept."""


class OpenedModel:
    """One model in fake mode: the whole model at first, and the share of the layout's first rank after ``spread``.

    All but a few of its blocks can be left out (``shorten``), and put back afterwards, but only for updates (``grow``).
    Cyclic garbage is collected only between steps. Otherwise, buffers would be freed at moments that differ from trace
    to trace.
    """

    def __init__(self, recipe: Recipe, layout: Layout, draw: int = 0, *, itemised: bool = False) -> None:
        """``itemised`` logs each operation as well.

        With ``UNEVEN`` the model's own choices, such as experts, are all the same (see ``estimators.tracing.values``).
        """
        self._recipe, self._draw, self._itemised = recipe, draw, itemised
        self._wanted, self._layout = layout, Layout()
        self._modes = contextlib.ExitStack()
        self._left_out: list[nn.Module] = []
        self._assumed: set[str] = set()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as modes:
            modes.enter_context(deferred_garbage())
            modes.enter_context(torch.random.fork_rng(devices=[]))  # before the recorder, which counts such states
            modes.enter_context(self._recipe.device.code_paths())
            self._mesh = modes.enter_context(fake_mesh(self._wanted))
            fake = modes.enter_context(FakeMode(allow_non_fake_inputs=True))
            recorder = Recorder(
                fake,
                device=self._recipe.device,
                even=self._draw != UNEVEN,
                drawn=ENDS.get(self._draw),
                itemised=self._itemised,
                groups=groups_of(self._mesh) if self._mesh is not None else None,
            )
            self._recorder = modes.enter_context(recorder)
            self._watch = BlockWatch(self._recorder)
            modes.enter_context(stand_ins(self._recorder.values))
            modes.callback(random.setstate, random.getstate())
            modes.callback(np.random.set_state, np.random.get_state(legacy=False))
            with NoInit():
                self._model = self._recipe.build_model()
            gc.collect()
            self._recorder.claim("buffers")  # tensors that modules hold without registering them
            self._model.train()
            self._blocks = list(dict.fromkeys(self._recipe.blocks(self._model)))  # one may be there several times
            self.num_params = sum(parameter.numel() for parameter in self._model.parameters())
            frozen = [parameter for parameter in self._model.parameters() if not parameter.requires_grad]
            self._frozen_bytes = sum(parameter.nbytes for parameter in frozen)
            self._frozen = [(ref(parameter), parameter._version) for parameter in frozen]  # they must not outlive it
            del frozen
            self.num_blocks = len(self._blocks)
            self.divisions = self._divisions() if self._wanted == Layout() else INDIVISIBLE
            self.outlines = outlines_of(self._model, self._blocks, self._recipe)
            self._optimizer = self._new_optimizer()
            self._modes = modes.pop_all()
        return self

    def __exit__(self, *exc_info: Any) -> None:
        del self._model, self._optimizer, self._blocks, self._left_out, self._watch
        self._modes.close()

    @property
    def traits(self) -> Traits:
        """Traits of the code that have been noted so far."""
        return self._recipe.traits(self._model)

    @property
    def frozen_bytes(self) -> int:
        """Bytes of parameters that do not train; 0 if a later step may train any, or a traced one has written to it."""
        present = [(parameter(), before) for parameter, before in self._frozen]
        writes = any(parameter is not None and parameter._version != before for parameter, before in present)
        return 0 if self._recipe.unfreezes or writes else self._frozen_bytes

    @property
    def can_be_shortened(self) -> bool:
        """Whether there are more blocks than must be traced, all equal and one after another."""
        return (
            not self.traits.has_phases
            and self.num_blocks > TRACED_BLOCKS
            and self.has_equal_blocks
            and container_of(self._model, self._blocks) is not None
        )

    @property
    def has_equal_blocks(self) -> bool:
        """Whether all blocks are equal."""
        return are_equal(self._blocks)

    @property
    def shapes(self) -> tuple[tuple[tuple[int, ...], int | None], ...]:
        """The shape of each parameter, with the number of its block (None outside of the blocks).

        Layers that ranks divide have the shape of a rank's part; shards of FSDP are not counted.
        """
        blocks = {parameter: number for number, block in enumerate(self._blocks) for parameter in block.parameters()}
        return tuple((shape_of(parameter), blocks.get(parameter)) for parameter in self._model.parameters())

    @property
    def sample_dimensions(self) -> list[int]:
        """Sizes of all dimensions of each tensor of a batch, except its first dimension."""
        with _disable_current_modes():
            samples = self._recipe.make_batch(2)
        return [size for leaf in tree_leaves(samples) if isinstance(leaf, Tensor) for size in leaf.shape[1:]]

    def shorten(self) -> None:
        """Leave ``TRACED_BLOCKS`` blocks in the model, and mark in the log where each begins."""
        self._left_out = self._blocks[TRACED_BLOCKS:]
        self._blocks = shorten(self._model, self._blocks, TRACED_BLOCKS)
        self._optimizer = self._new_optimizer()
        self._watch.watch(self._blocks)

    def spread(self) -> None:
        """Apply the layout to the model."""
        self._layout = self._wanted
        self._model = self._recipe.apply_plan(self._model, self._blocks, self._layout, self._mesh)
        modules = set(self._model.modules())
        self._blocks = [block for block in self._blocks if block in modules]  # blocks of other stages are gone
        self._optimizer = self._new_optimizer()
        if self._left_out or self._layout == Layout():
            self._watch.watch(self._blocks)

    def grow(self, num: int | None = None) -> list[tuple[Tensor, Tensor]]:
        """Put back ``num`` of the blocks that ``shorten`` left out (None: all), with parameters like the others'.

        Returns each parameter with the new ones that are like it.
        """
        copied = list(lengthen(self._model, self._blocks, self._left_out[:num]))
        self._optimizer = self._new_optimizer()
        return copied

    def _new_optimizer(self) -> Optimizer:
        optimizer = self._recipe.optimizer(self._model, self._layout, self._mesh)
        self._unfreeze(optimizer)
        return optimizer

    def _unfreeze(self, optimizer: Optimizer) -> None:
        """Train whatever a later step may train: activations, gradients and states are then traced with all others."""
        frozen = [
            tensor
            for tensor in held_by(optimizer)
            if not tensor.requires_grad and (tensor.is_floating_point() or tensor.is_complex())
        ]
        if self._recipe.unfreezes and frozen:
            self._assumed.add(self._recipe.unfreezes)
            for parameter in frozen:
                parameter.requires_grad_(True)

    def _divisions(self) -> Divisions:
        with _disable_current_modes():  # batches are real
            return self._recipe.divisions(self._model, self._blocks)
