"""Ray's autoscaler is told what is wanted, and gets idle nodes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scamp_service.cluster.devices.autoscaler import Autoscaler

NODES = {"a": 2, "b": 2, "c": 4}


class FakeRay:
    """Keeps the bundles of the last request, and a clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.requests: list[Sequence[Mapping[str, float]]] = []
        self.autoscaler = Autoscaler(self.requests.append, lambda: self.now, idle_seconds=60.0)

    def follow(self, in_use: str, *, after: float = 0.0) -> frozenset[str]:
        self.now += after
        self.autoscaler.follow(NODES, frozenset(in_use), "GPU")
        return self.autoscaler.given_back


def test_only_a_new_wish_is_told_and_nothing_before_the_first_one() -> None:
    ray = FakeRay()
    assert ray.follow("") == frozenset() and not ray.requests
    ray.autoscaler.want(3)
    ray.follow("")
    ray.follow("")
    ray.autoscaler.want(0)
    ray.follow("")
    assert ray.requests == [[{"GPU": 1.0}] * 3, []]


def test_a_node_is_given_back_after_it_was_idle_for_a_while_and_comes_back_when_it_is_wanted() -> None:
    ray = FakeRay()
    ray.autoscaler.want(4)
    assert ray.follow("c") == frozenset() and ray.follow("c", after=59.0) == frozenset()
    assert ray.follow("c", after=2.0) == {"a", "b"}
    ray.autoscaler.want(6)
    assert ray.follow("c") == {"a"}
    ray.autoscaler.want(4)
    assert ray.follow("bc") == {"a"}, "a node in use stays"


def test_in_the_end_nothing_is_wanted() -> None:
    ray = FakeRay()
    ray.autoscaler.end()
    assert ray.requests == [[]]
