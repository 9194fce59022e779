"""No attempt sees what an earlier one of the same user code has left in their process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.forks import in_fork
from workloads.cleaning.cleaner import Cleaner
from workloads.loading import load_workload

pytestmark = pytest.mark.full

HEAD = """
import atexit, builtins, copyreg, gc, json, logging, multiprocessing, os, random, resource, signal, socket
import subprocess, sys
import tempfile, threading, time, warnings
import numpy as np
import torch
from torch import nn
from torch.optim import optimizer
from scamp import Workload

class Mine(Workload):
    build_model = loss = optimizer = train_batch = eval_batch = evaluate = num_train = num_eval = None

class Handler(logging.StreamHandler):
    pass

counted = []

def mark(*_):
    pass
"""

MARKS = {  # name → (a statement that leaves a mark of the user's, an expression that sees it)
    "globals of a module": ("counted.append(1)", "counted"),
    "a class's attribute": ("Mine.seen = True", "hasattr(Mine, 'seen')"),
    "another file's globals": ("import second; second.counted.append(1)", "__import__('second').counted"),
    "a module on sys.path": (
        "sys.path.insert(0, os.path.dirname(__file__)); __import__ = builtins.__import__; "
        "__import__('third').counted.append(1)",
        "'third' in sys.modules",
    ),
    "an import hook": ("sys.meta_path.append(mark)", "any(one.__class__ is mark.__class__ for one in sys.meta_path)"),
    "the exception hook": ("sys.excepthook = mark", "getattr(sys.excepthook, '__name__', '') == 'mark'"),
    "warnings that were shown": (
        "torch.__dict__.setdefault('__warningregistry__', {})['mark'] = 1",
        "'mark' in torch.__dict__.get('__warningregistry__', {})",
    ),
    "the root logger's handler": (
        "logging.root.addHandler(Handler())",
        "any(type(one).__name__ == 'Handler' for one in logging.root.handlers)",
    ),
    "a hook of all modules": (
        "nn.modules.module.register_module_forward_hook(mark)",
        "nn.modules.module._global_forward_hooks",
    ),
    "a hook of all optimizers": (
        "optimizer.register_optimizer_step_pre_hook(mark)",
        "optimizer._global_optimizer_pre_hooks",
    ),
    "a callback of the garbage collector": (
        "gc.callbacks.append(mark)",
        "[one for one in gc.callbacks if getattr(one, '__name__', '') == 'mark']",  # Hypothesis has one, too
    ),
    "a trace function": ("threading.settrace(mark)", "threading.gettrace()"),
    "a signal handler": (
        "signal.signal(signal.SIGUSR1, mark)",
        "signal.getsignal(signal.SIGUSR1) is not signal.SIG_DFL",
    ),
    "how to pickle": ("copyreg.pickle(Mine, mark)", "any(one.__name__ == 'Mine' for one in copyreg.dispatch_table)"),
}

UNCLEAN = {  # name → (a statement that leaves a mark, a part of the reason)
    "a thread": ("threading.Thread(target=time.sleep, args=(9,), name='theirs').start()", "threads still run: theirs"),
    "a child process": ("torch.child = subprocess.Popen(['sleep', '9'])", "child processes still run"),
    "an open file": ("os.open(__file__, os.O_RDONLY)", "files are still open"),
    "an exit handler": (
        "atexit.register(lambda: None)",
        "still hold functions or objects of the user's code (mine, mine.Handler",
    ),
    "an object in a library's list": ("nn.__path__.append(Mine({}))", "still hold functions or objects of the user's"),
    "a function in a library's table": ("json.decoder.BACKSLASH['m'] = mark", "still hold functions or objects of the"),
    "a function of torch": ("nn.functional.relu = torch.relu", "torch.nn.functional.relu was changed"),
    "a partial function": ("torch.load = __import__('functools').partial(torch.load)", "torch.load was changed"),
    "a method of a class": (
        "nn.Linear.extra_repr = nn.Module.extra_repr",
        "torch.nn.modules.linear.Linear.extra_repr was changed",
    ),
    "a method of tensors": ("torch.Tensor.mark = torch.relu", "torch.Tensor.mark was added"),
    "a fake module": ("sys.modules['json'] = Mine", "the module json was replaced"),
    "a builtin": ("builtins.mark = 1", "builtins.mark was added"),
    "a flag": ("sys.modules['torch.storage'].HAS_NUMPY ^= True", "torch.storage.HAS_NUMPY was changed"),
    "a lowered limit": ("resource.setrlimit(resource.RLIMIT_CORE, (0, 0))", "the resource limits cannot be restored"),
    "memory": ("torch.kept = [torch.ones(30_000_000)]", "MiB more than after its first attempt"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(HEAD)
    for name in ("second", "third"):
        (tmp_path / f"{name}.py").write_text("counted = []\n")
    return tmp_path


def names(folder: Path) -> dict[str, Any]:
    """The global names of the user's file, as an attempt sees them."""
    return vars(sys.modules[load_workload("mine.py:Mine", folder).__module__])


def seen(folder: Path, leave: str, sees: str) -> tuple[bool, str, bool]:
    """Whether the mark is seen, why the process is not clean afterwards, and whether the next attempt sees the mark."""
    cleaner = Cleaner()
    cleaner.remember()
    exec(leave, names(folder))
    before = bool(eval(sees, names(folder)))
    why = cleaner.restore(folder)
    return before, why, bool(eval(sees, names(folder)))


def reason(folder: Path, leave: str) -> str:
    """Why a process is not clean after its second attempt, which leaves a mark."""
    cleaner = Cleaner()
    cleaner.remember()
    names(folder)
    assert cleaner.restore(folder) == ""
    cleaner.remember()
    exec(leave, names(folder))
    return cleaner.restore(folder)


@pytest.mark.sample
@pytest.mark.parametrize("name", MARKS)
def test_the_next_attempt_does_not_see(name: str, folder: Path) -> None:
    assert in_fork(lambda: seen(folder, *MARKS[name])) == [True, "", False]


@pytest.mark.sample
@pytest.mark.parametrize("name", UNCLEAN)
def test_a_process_is_not_used_again_because_of(name: str, folder: Path) -> None:
    leave, why = UNCLEAN[name]
    assert why in in_fork(lambda: reason(folder, leave))
