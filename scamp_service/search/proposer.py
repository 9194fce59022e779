"""The interface between the controller and the code that runs samplers: threads in production, virtual time in
simulations.

The contract is level-triggered: ``requests`` returns what was asked for and the answers there are now.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from scamp_service.search.history import Past
from scamp_service.study.spec import StudySpec
from scamp_service.study.values import Params


@dataclass(frozen=True, slots=True)
class Proposal:
    """Parameters of as many candidates as were asked for, or of fewer if the sampler has none after them.

    ``parents`` has for each the number of the trial with whose weights it begins, or None; empty if none has one.
    ``reasons`` say of each why it was chosen among several proposals; empty if it was not. ``regret`` bounds the regret
    of what was found before; None if there is nothing new to say.
    """

    candidates: Sequence[Params]
    is_last: bool = False
    parents: Sequence[int | None] = ()
    regret: float | None = None
    reasons: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ProposalRequest:
    """The request of one study: candidates from trial ``first_number`` on.

    ``answer`` is None until the sampler has answered or failed. ``seconds`` is how long it has worked.
    """

    first_number: int
    seconds: float = 0.0
    answer: Proposal | Exception | None = None


class SearchEnded(Exception):
    """The study must end, as asking again would not help. The message is the reason that its user sees."""


class Proposer(Protocol):
    """Runs the samplers of studies away from the controller's thread."""

    def request(self, study_id: int, spec: StudySpec, changed: Iterable[Past], first_number: int, count: int) -> None:
        """Ask for ``count`` candidates, and drop what the study has asked for before.

        ``changed`` are its trials that have changed since the last request; all of them if it is not remembered.
        """
        ...

    def requests(self) -> Mapping[int, ProposalRequest]:
        """Study → what it has asked for last, until this is forgotten."""
        ...

    def remembers(self, study_id: int) -> bool:
        """Whether the trials of earlier requests are known, so that those that have changed since are enough."""
        ...

    def forget(self, study_id: int) -> None:
        """Drop what the study has asked for, with its answer. Its trials are still remembered."""
        ...

    def forget_ended(self, live_studies: Container[int]) -> None:
        """Drop all that is known of studies that are not among ``live_studies``."""
        ...
