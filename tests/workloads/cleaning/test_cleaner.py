"""No attempt sees what an earlier one of the same user code has left in their process."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workloads.cleaning.cleaner import Cleaner
from workloads.loading import load_workload

HEAD = """
import atexit, builtins, copyreg, gc, json, logging, multiprocessing, os, random, resource, signal, socket
import subprocess, sys
import tempfile, threading, time, warnings
import numpy as np
import torch
from torch import nn
from torch.optim import optimizer
from workloads.protocol import Workload

class Mine(Workload):
    build_model = loss = optimizer = train_batch = eval_batch = evaluate = num_train = num_eval = None

class Handler(logging.StreamHandler):
    pass

counted = []

def mark(*_):
    pass
"""

MARKS = {  # name → (a statement that leaves a mark, an expression that sees it)
    "globals of a module": ("counted.append(1)", "counted"),
    "a class's attribute": ("Mine.seen = True", "hasattr(Mine, 'seen')"),
    "another file's globals": ("import second; second.counted.append(1)", "__import__('second').counted"),
    "a module on sys.path": (
        "sys.path.insert(0, os.path.dirname(__file__)); __import__ = builtins.__import__; "
        "__import__('third').counted.append(1)",
        "'third' in sys.modules",
    ),
    "the environment": ("os.environ['MARK'] = '1'", "'MARK' in os.environ"),
    "a variable that was there": ("os.environ.pop('PATH')", "'PATH' not in os.environ"),
    "the working directory": ("os.chdir('/')", "os.getcwd() == '/'"),
    "the umask": ("os.umask(0o77)", "os.umask(0o22) == 0o77"),
    "sys.path": ("sys.path.append('/mark')", "'/mark' in sys.path"),
    "sys.argv": ("sys.argv.append('mark')", "'mark' in sys.argv"),
    "an import hook": ("sys.meta_path.append(mark)", "any(one.__class__ is mark.__class__ for one in sys.meta_path)"),
    "the exception hook": ("sys.excepthook = mark", "getattr(sys.excepthook, '__name__', '') == 'mark'"),
    "warning filters": ("warnings.simplefilter('ignore')", "warnings.filters[0][0] == 'ignore'"),
    "warnings that were shown": (
        "torch.__dict__.setdefault('__warningregistry__', {})['mark'] = 1",
        "'mark' in torch.__dict__.get('__warningregistry__', {})",
    ),
    "the root logger's handler": (
        "logging.root.addHandler(Handler())",
        "any(type(one).__name__ == 'Handler' for one in logging.root.handlers)",
    ),
    "a library's log level": (
        "logging.getLogger('torch').setLevel(logging.FATAL)", "logging.getLogger('torch').level == logging.FATAL"
    ),
    "a logger of its own": (
        "logging.getLogger('mine').addHandler(logging.StreamHandler())", "logging.getLogger('mine').handlers"
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
    "a hook of all modules": (
        "nn.modules.module.register_module_forward_hook(mark)", "nn.modules.module._global_forward_hooks"
    ),
    "a hook of all optimizers": (
        "optimizer.register_optimizer_step_pre_hook(mark)",
        "optimizer._global_optimizer_pre_hooks",
    ),
    "a callback of the garbage collector": (
        "gc.callbacks.append(mark)",
        "[one for one in gc.callbacks if getattr(one, '__name__', '') == 'mark']",  # Hypothesis has one, too
    ),
    "no garbage collection": ("gc.disable()", "not gc.isenabled()"),
    "a trace function": ("threading.settrace(mark)", "threading.gettrace()"),
    "the recursion limit": ("sys.setrecursionlimit(12345)", "sys.getrecursionlimit() == 12345"),
    "the timeout of sockets": ("socket.setdefaulttimeout(7)", "socket.getdefaulttimeout() == 7"),
    "the start method": (
        "multiprocessing.set_start_method('spawn', force=True)",
        "multiprocessing.get_start_method(allow_none=True) == 'spawn'",
    ),
    "a timer": ("signal.signal(signal.SIGALRM, signal.SIG_IGN); signal.alarm(100)", "signal.getitimer(0)[0]"),
    "a signal handler": (
        "signal.signal(signal.SIGUSR1, mark)", "signal.getsignal(signal.SIGUSR1) is not signal.SIG_DFL"
    ),
    "how to pickle": (
        "copyreg.pickle(Mine, mark)", "any(one.__name__ == 'Mine' for one in copyreg.dispatch_table)"
    ),
}  # fmt: skip

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


def in_fork(run: Callable[[], Any]) -> Any:
    """What ``run`` returns, as JSON, in a copy of this process that ends afterwards."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from Python 3.12 on, forks of processes with threads
        child = os.fork()
    if child == 0:
        try:
            answer = run()
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        answer = json.loads(stream.read())
    os.waitpid(child, 0)
    return answer


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


@pytest.mark.parametrize("name", MARKS)
def test_the_next_attempt_does_not_see(name: str, folder: Path) -> None:
    assert in_fork(lambda: seen(folder, *MARKS[name])) == [True, "", False]


@pytest.mark.parametrize("name", UNCLEAN)
def test_a_process_is_not_used_again_because_of(name: str, folder: Path) -> None:
    leave, why = UNCLEAN[name]
    assert why in in_fork(lambda: reason(folder, leave))
