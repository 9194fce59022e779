"""Settings of a process get their old values back. Everything is tried in copies of this process."""

from __future__ import annotations

import gc  # these are used by the statements below
import logging
import multiprocessing
import os
import random
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.forks import in_fork
from workloads.cleaning import settings
from workloads.cleaning.settings import ProcessSettings

MARKS = {  # name → (a statement that changes a setting, an expression that sees it)
    "the environment": ("os.environ['MARK'] = '1'", "'MARK' in os.environ"),
    "a variable that was there": ("os.environ.pop('PATH')", "'PATH' not in os.environ"),
    "the working directory": ("os.chdir('/')", "os.getcwd() == '/'"),
    "the umask": ("os.umask(0o77)", "os.umask(0o22) == 0o77"),
    "sys.path": ("sys.path.append('/mark')", "'/mark' in sys.path"),
    "another sys.path": ("sys.path = [*sys.path, '/mark']", "'/mark' in sys.path"),
    "sys.argv": ("sys.argv.append('mark')", "'mark' in sys.argv"),
    "warning filters": ("warnings.simplefilter('always')", "warnings.filters[0][0] == 'always'"),
    "a library's log level": (
        "logging.getLogger('torch').setLevel(logging.FATAL)",
        "logging.getLogger('torch').level == logging.FATAL",
    ),
    "a logger of its own": (
        "logging.getLogger('mine').addHandler(logging.StreamHandler())",
        "logging.getLogger('mine').handlers",
    ),
    "disabled logging": ("logging.disable()", "logging.root.manager.disable"),
    "Python's random numbers": ("random.seed(7)", "random.random() == random.Random(7).random()"),
    "numpy's random numbers": ("np.random.seed(7)", "np.random.rand() == np.random.RandomState(7).rand()"),
    "torch's random numbers": ("torch.manual_seed(7)", "torch.initial_seed() == 7"),
    "numpy's errors": ("np.seterr(all='raise')", "np.geterr()['under'] == 'raise'"),
    "the default dtype": ("torch.set_default_dtype(torch.float64)", "torch.zeros(1).dtype is torch.float64"),
    "the default device": ("torch.set_default_device('meta')", "torch.zeros(1).is_meta"),
    "gradients": ("torch.set_grad_enabled(False)", "not torch.is_grad_enabled()"),
    "autocast": ("torch.set_autocast_enabled('cpu', True)", "torch.is_autocast_enabled('cpu')"),
    "determinism": ("torch.use_deterministic_algorithms(True)", "torch.are_deterministic_algorithms_enabled()"),
    "precision": ("torch.set_float32_matmul_precision('medium')", "torch.get_float32_matmul_precision() == 'medium'"),
    "cudnn's benchmark": ("torch.backends.cudnn.benchmark = True", "torch.backends.cudnn.benchmark"),
    "oneDNN": ("torch.backends.mkldnn.enabled = False", "not torch.backends.mkldnn.enabled"),
    "attention": ("torch.backends.cuda.enable_math_sdp(False)", "not torch.backends.cuda.math_sdp_enabled()"),
    "threads of torch": ("torch.set_num_threads(2)", "torch.get_num_threads() == 2"),
    "anomaly detection": ("torch.autograd.set_detect_anomaly(True)", "torch.is_anomaly_enabled()"),
    "no garbage collection": ("gc.disable()", "not gc.isenabled()"),
    "the recursion limit": ("sys.setrecursionlimit(12345)", "sys.getrecursionlimit() == 12345"),
    "the timeout of sockets": ("socket.setdefaulttimeout(7)", "socket.getdefaulttimeout() == 7"),
    "the start method": (
        "multiprocessing.set_start_method('spawn', force=True)",
        "multiprocessing.get_start_method(allow_none=True) == 'spawn'",
    ),
    "a timer": ("signal.signal(signal.SIGALRM, signal.SIG_IGN); signal.alarm(100)", "signal.getitimer(0)[0]"),
}


@pytest.fixture(scope="module")
def tried() -> dict[str, Any]:
    """For each change, whether it is seen before and after it is undone; and settings that cannot be written."""

    def try_all() -> dict[str, Any]:
        seen = {}
        for name, (change, sees) in MARKS.items():
            before = ProcessSettings()
            exec(change, globals())
            was_seen = bool(eval(sees, globals()))
            assert before.restore() == []
            seen[name] = [was_seen, bool(eval(sees, globals()))]
        return {
            "seen": seen,
            "unwritable": [setting.name for setting in settings._SETTINGS if not can_be_written(setting)],
        }

    answer: dict[str, Any] = in_fork(try_all)  # one for all: torch's determinism imports its compiler
    return answer


def can_be_written(setting: settings._Setting) -> bool:
    before = setting.read()
    setting.write(before)
    return settings._equal(setting.read(), before)


@pytest.mark.parametrize("name", MARKS)
def test_a_change_is_undone(name: str, tried: dict[str, Any]) -> None:
    assert tried["seen"][name] == [True, False]


def test_every_setting_can_be_written_as_it_is_read(tried: dict[str, Any]) -> None:
    assert tried["unwritable"] == []


def test_names_of_settings_are_unlike() -> None:
    """They are in the reason why a process cannot be used again."""
    names = [setting.name for setting in settings._SETTINGS]
    assert sorted(set(names)) == sorted(names)


class Fake:
    """A setting of which the test knows when it is written."""

    def __init__(self, value: Any, error: str = "") -> None:
        self.value, self.error, self.written = value, error, list[Any]()

    def read(self) -> Any:
        return self.value

    def write(self, value: Any) -> None:
        self.written.append(value)
        if self.error:
            raise OSError(self.error)
        self.value = value


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Words for what cannot be restored after a change of these settings."""
    monkeypatch.setattr(settings, "_seed_anew", lambda: None)

    def restore(change: Callable[[], None], **fakes: Fake) -> list[str]:
        table = [settings._Setting(name, fake.read, fake.write) for name, fake in fakes.items()]
        monkeypatch.setattr(settings, "_SETTINGS", table)
        before = ProcessSettings()
        change()
        return before.restore()

    return restore


def test_only_what_has_changed_is_written_and_a_value_of_another_type_has(restored: Callable[..., list[str]]) -> None:
    same, changed, typed = Fake([1]), Fake("a"), Fake(False)

    def change() -> None:
        same.value, changed.value, typed.value = [1], "b", 0

    assert restored(change, same=same, changed=changed, typed=typed) == []
    assert (same.written, changed.written, typed.written) == ([], ["a"], [False])


def test_what_cannot_be_restored_is_named_with_the_reason_and_all_others_are_restored(
    restored: Callable[..., list[str]],
) -> None:
    limits, last = Fake(5, "Operation not permitted"), Fake(1)

    def change() -> None:
        limits.value = last.value = 2

    why = restored(change, limits=limits, last=last)
    assert why == ["limits cannot be restored (Operation not permitted)"]
    assert last.value == 1


def test_a_mapping_keeps_its_identity_and_what_it_had_gets_back(restored: Callable[..., list[str]]) -> None:
    kept = object()
    table = {"a": 1, "b": kept}
    setting = settings._mapping("a table", table)
    before = setting.read()
    table |= {"a": 2, "c": 3}
    del table["b"]
    setting.write(before)
    assert table == {"a": 1, "b": kept} == before and table is not before


def test_loggers_that_a_library_makes_stay_and_those_of_users_are_reset(restored: Callable[..., list[str]]) -> None:
    old, theirs, users = (logging.getLogger(name) for name in ("scamp.test", "torch.made_by_a_test", "users.own"))
    for name in ("torch.made_by_a_test", "users.own"):
        del logging.root.manager.loggerDict[name]  # they are made later
    old.setLevel(logging.INFO)

    def change() -> None:
        logging.root.manager.loggerDict |= {"torch.made_by_a_test": theirs, "users.own": users}
        for logger in (old, theirs, users):
            logger.setLevel(logging.ERROR)
            logger.addHandler(logging.NullHandler())
            logger.propagate = False

    assert restored(change) == []
    levels = [logger.level for logger in (old, theirs, users)]
    assert levels == [logging.INFO, logging.ERROR, logging.NOTSET]
    assert [len(logger.handlers) for logger in (old, theirs, users)] == [0, 1, 0]
    assert [logger.propagate for logger in (old, theirs, users)] == [True, False, True]
    for name in ("scamp.test", "torch.made_by_a_test", "users.own"):
        del logging.root.manager.loggerDict[name]


_USED = (gc, multiprocessing, os, random, signal, socket, sys, threading, warnings, np, torch)
"""The names that the statements use."""
