"""The passes that a member of a pack makes with others in one mode of its model: that of training or of evaluations."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import nn

from workloads.training.packs.low_rank import LowRank
from workloads.training.packs.settings import Settings
from workloads.training.packs.sites import CannotJoin, Skeleton, adapters_in

_MOST_CHANGES = 8
"""So often may the settings of a model change before a few passes are the same; then it goes alone."""


class Sharing:
    """How a model, which is in this mode now, passes through ``skeleton`` with those of others.

    ``alone_because`` says why all passes are made alone; empty if they are made with others. ``groups``: low-rank
    adapters are computed with those of others in one operation.
    """

    def __init__(self, model: nn.Module, skeleton_of: Callable[[nn.Module], Skeleton]) -> None:
        self.model, self._skeleton_of = model, skeleton_of
        self.alone_because = ""
        self.groups = True
        self._num_shared = self._num_changes = self._version = 0
        self._modules: Mapping[str, nn.Module] = {}
        self._adapters: Mapping[str, LowRank | None] = {}
        self._settings: Settings | None = None

    def begin(self) -> None:
        """See what the model has in common with others: once a pass has set what models set in their first one."""
        if self._settings is None:
            try:
                self.skeleton = self._skeleton_of(self.model)
            except Exception as error:  # as of a model that cannot be copied
                self.go_alone(f"{type(error).__name__}: {error}")
            else:
                self._join()
            self._settings = Settings(self.model)

    @property
    def is_whole(self) -> bool:
        """Whether the model has still in common with the others what it had when it began."""
        return self._settings is None or bool(self.alone_because) or self.skeleton.fits(self.model)

    def go_alone(self, why: str) -> None:
        """Make all passes alone from now on, unless there is a reason already."""
        self.alone_because = self.alone_because or why

    def sites(self) -> tuple[Mapping[str, nn.Module], Mapping[str, LowRank | None]]:
        """The model's own modules at the sites, and those of them that are low-rank adapters."""
        if self._version != self.skeleton.version:
            self._version, self._modules = self.skeleton.version, self.skeleton.modules_of(self.model)
            self._adapters = adapters_in(self._modules)
            self._settings = Settings(self.model)
        return self._modules, self._adapters if self.groups else {}

    def notice_changes(self) -> None:
        """If the model's settings have changed since this was asked before, compare the next pass with others."""
        if self.alone_because or self._settings is None or not self._settings.changed():
            return
        self._num_changes += 1
        self.begin_again()
        if self._num_changes > _MOST_CHANGES:
            self.go_alone("attributes of its model change too often")
        else:
            self._join()

    def begin_again(self) -> None:
        """Compare the next passes as the first ones."""
        self._version = self._num_shared = 0

    def is_compared(self) -> bool:
        """Whether the pass that was just made with others is compared: the first ones, and then ever fewer."""
        self._num_shared += 1
        if self._num_shared & (self._num_shared - 1):
            return False
        self._num_changes *= self._num_shared < 4  # they are seldom enough
        return True

    def _join(self) -> None:
        try:
            self.skeleton.add(self.model)
        except CannotJoin as error:
            self.go_alone(str(error))
