"""Options of groups of parameters that are parts of other groups: learning rates, momentum, weight decay and so on.

A plan may divide the groups of a user's optimizer. A schedule that the user's code holds changes the groups that it
knows, by number or in the optimizer that it was made for, and must reach all parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

Group = dict[str, Any]


class SharedOptions:
    """The options of pairs of a group and a part of it, which are new."""

    def __init__(self, pairs: Callable[[], Iterable[tuple[Group, Group]]]) -> None:
        self._pairs = pairs
        self._before = [_options(part) for _, part in pairs()]

    def share(self) -> None:
        """Give each part the options of its group, and first the group what was changed in its part alone."""
        pairs = list(self._pairs())
        for (group, part), before in zip(pairs, self._before, strict=False):  # groups may have been added
            group |= {name: part[name] for name in before if part[name] is not before[name] is group[name]}
        self.give()

    def give(self) -> None:
        """Give each part the options of its group."""
        pairs = list(self._pairs())
        for group, part in pairs:
            part |= {name: value for name, value in _options(group).items() if name in part}
        self._before = [_options(part) for _, part in pairs]


def _options(group: Group) -> Group:
    return {name: value for name, value in group.items() if name not in ("params", "part_of")}
