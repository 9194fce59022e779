"""The description of what a thread without progress does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist

from scamp_service.cluster.worker.whereabouts import whereabouts
from tests.waiting import PATIENCE_SECONDS


def seen(act: Callable[[], None], release: Callable[[], None]) -> str:
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    try:
        for _ in range(100):
            thread.join(0.05)
            if len(words := whereabouts(thread)) and "run, threading" not in words and "start" not in words:
                return words
        return words
    finally:
        release()
        thread.join(PATIENCE_SECONDS)


def test_a_thread_that_waits_for_its_data_is_said_to() -> None:
    event = threading.Event()

    def train_batch() -> None:
        event.wait(PATIENCE_SECONDS)

    words = seen(train_batch, event.set)
    assert words.startswith("reads its data (train_batch, test_whereabouts.py:")


def test_a_thread_that_waits_for_its_peers_is_said_to_with_the_collective() -> None:
    store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
    peer = dist.TCPStore("127.0.0.1", store.port, 2, is_master=False)

    def meet(rank: int, store: dist.Store) -> None:
        limit = timedelta(seconds=PATIENCE_SECONDS)
        dist.distributed_c10d._store_based_barrier(rank, store, dist.distributed_c10d.GroupName("group"), 2, limit)

    assert seen(lambda: meet(0, store), lambda: meet(1, peer)) == "waits in _store_based_barrier"


def test_any_other_place_is_named_by_the_users_own_line_and_an_ended_thread_by_nothing() -> None:
    event = threading.Event()

    def mine() -> None:
        event.wait(PATIENCE_SECONDS)

    assert seen(mine, event.set).startswith("is in mine, test_whereabouts.py:")
    ended = threading.Thread(target=lambda: None)
    ended.start()
    ended.join()
    assert whereabouts(ended) == ""
