"""Settings of a process that users' code may change, and how each is read and written."""

from __future__ import annotations

import copyreg
import gc
import locale
import logging
import multiprocessing
import os
import random
import resource
import signal
import socket
import sys
import tempfile
import threading
import tracemalloc
import warnings
from collections.abc import Callable, Iterator, MutableMapping, MutableSequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer

_TORCH_SEED = 67280421310721  # default_rng_seed_val in c10/core/GeneratorImpl.h


@dataclass(frozen=True, slots=True)
class _Setting:
    """``write`` gets what ``read`` returned before, and is called only if that has changed."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], Any]


class ProcessSettings:
    """The settings as they were when this object was made."""

    def __init__(self) -> None:
        self._before = [(setting, setting.read()) for setting in _SETTINGS]
        self._loggers = {name: _logger_state(logger) for name, logger in _loggers()}
        self._warnings = warnings.catch_warnings()
        self._warnings.__enter__()

    def restore(self) -> list[str]:
        """Write back each setting that has changed; returns those that cannot be restored, with the reason."""
        self._warnings.__exit__(None, None, None)
        _seed_anew()
        tracemalloc.stop()
        for name, logger in _loggers():
            _restore_logger(name, logger, self._loggers.get(name))
        failed = []
        for setting, before in self._before:
            try:
                if not _equal(setting.read(), before):
                    setting.write(before)
            except Exception as error:
                failed.append(f"{setting.name} cannot be restored ({error})")
        return failed


def _equal(now: Any, before: Any) -> bool:
    return bool(now is before or (type(now) is type(before) and now == before))


# --- the table ------------------------------------------------------------------------------------------------------


def _attribute(thing: Any, name: str) -> _Setting:
    where = getattr(thing, "__name__", type(thing).__name__)
    return _Setting(f"{where}.{name}", lambda: getattr(thing, name), lambda value: setattr(thing, name, value))


def _list_of_sys(name: str) -> _Setting:
    """A list, or another one that has taken its place."""

    def write(before: tuple[list[Any], list[Any]]) -> None:
        items, values = before
        items[:] = values
        setattr(sys, name, items)

    return _Setting(f"sys.{name}", lambda: (getattr(sys, name), list(getattr(sys, name))), write)


def _sequence(name: str, items: MutableSequence[Any]) -> _Setting:
    def write(before: list[Any]) -> None:
        items[:] = before

    return _Setting(name, lambda: list(items), write)


def _mapping(name: str, items: MutableMapping[Any, Any]) -> _Setting:
    def write(before: dict[Any, Any]) -> None:
        for key in [key for key in items if key not in before]:
            del items[key]
        for key, value in before.items():
            if key not in items or not _equal(items[key], value):
                items[key] = value

    return _Setting(name, lambda: dict(items), write)


def _cwd() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # the folder was removed
        return ""


def _umask() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("Umask:")), 8)


def _limits() -> dict[int, tuple[int, int]]:
    kinds = {getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
    return {kind: resource.getrlimit(kind) for kind in sorted(kinds)}


def _set_limits(before: dict[int, tuple[int, int]]) -> None:
    for kind, limits in before.items():
        resource.setrlimit(kind, limits)


def _signal_handlers() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in sorted(signal.valid_signals())}


def _set_signal_handlers(before: dict[int, Any]) -> None:
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


def _timers() -> tuple[tuple[float, float], ...]:
    kinds = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
    return tuple((0.0, 0.0) if signal.getitimer(kind) == (0.0, 0.0) else (1.0, 0.0) for kind in kinds)


def _stop_timers(_: Any) -> None:
    for kind in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
        signal.setitimer(kind, 0.0)


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _global_hooks() -> Iterator[_Setting]:
    """Hooks of all modules and optimizers."""
    for where in (torch_module, torch_optimizer):
        for name, value in vars(where).items():
            if name.startswith("_global_"):
                isolated = f"{where.__name__}.{name}"
                yield _mapping(isolated, value) if isinstance(value, dict) else _attribute(where, name)


def _backends() -> Iterator[_Setting]:
    for thing, *names in (
        (torch.backends.cudnn, "enabled", "benchmark", "benchmark_limit", "deterministic", "fp32_precision"),
        (torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", "fp32_precision"),
        (torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", "allow_fp16_accumulation"),
        (torch.backends.mkldnn, "enabled", "deterministic", "fp32_precision"),
        (torch.backends, "fp32_precision"),
    ):
        for name in names:
            yield _attribute(thing, name)
    for kind in ("flash", "mem_efficient", "math", "cudnn"):
        read = getattr(torch.backends.cuda, f"{kind}_sdp_enabled")
        yield _Setting(f"{kind} attention", read, getattr(torch.backends.cuda, f"enable_{kind}_sdp"))


_SETTINGS = (
    _Setting("the working directory", _cwd, os.chdir),
    _mapping("the environment", os.environ),
    _Setting("the umask", _umask, os.umask),
    _Setting("the resource limits", _limits, _set_limits),
    _Setting("the signal handlers", _signal_handlers, _set_signal_handlers),
    _Setting("timers", _timers, _stop_timers),
    _Setting("the locale", lambda: locale.setlocale(locale.LC_ALL), lambda v: locale.setlocale(locale.LC_ALL, v)),
    _Setting(
        "the cores that it may use", lambda: os.sched_getaffinity(0), lambda cores: os.sched_setaffinity(0, cores)
    ),
    _Setting(
        "the priority of the process",
        lambda: os.getpriority(os.PRIO_PROCESS, 0),
        lambda v: os.setpriority(os.PRIO_PROCESS, 0, v),
    ),
    _Setting("the timeout of sockets", socket.getdefaulttimeout, socket.setdefaulttimeout),
    _attribute(tempfile, "tempdir"),
    *map(_list_of_sys, ("path", "argv", "meta_path", "path_hooks")),
    *(_attribute(sys, f"{kind}hook") for kind in ("except", "unraisable", "display", "breakpoint")),
    *(_attribute(sys, name) for name in ("stdin", "stdout", "stderr", "dont_write_bytecode")),
    _attribute(threading, "excepthook"),
    _Setting("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    _Setting("the switch interval", sys.getswitchinterval, sys.setswitchinterval),
    _Setting("the trace function", sys.gettrace, sys.settrace),
    _Setting("the profile function", sys.getprofile, sys.setprofile),
    _Setting("the trace function of threads", threading.gettrace, threading.settrace),
    _Setting("the profile function of threads", threading.getprofile, threading.setprofile),
    _Setting("the stack size of threads", threading.stack_size, threading.stack_size),
    _sequence("callbacks of garbage collection", gc.callbacks),
    _Setting("garbage collection", gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    _Setting("the thresholds of garbage collection", gc.get_threshold, lambda before: gc.set_threshold(*before)),
    _Setting("the debugging of garbage collection", gc.get_debug, gc.set_debug),
    _attribute(logging.root.manager, "disable"),
    _attribute(logging, "raiseExceptions"),
    _Setting("the class of loggers", logging.getLoggerClass, logging.setLoggerClass),
    _mapping("copyreg's table", copyreg.dispatch_table),
    _Setting(
        "how processes are started",
        lambda: multiprocessing.get_start_method(allow_none=True),
        lambda method: multiprocessing.set_start_method(method, force=True),
    ),
    _Setting("numpy's errors", np.geterr, lambda before: np.seterr(**before)),
    _Setting("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype),
    _Setting("torch's default device", torch.get_default_device, lambda _: torch.set_default_device(None)),
    _Setting("whether gradients are on", torch.is_grad_enabled, torch.set_grad_enabled),
    _Setting("autocast", lambda: torch.is_autocast_enabled("cpu"), lambda on: torch.set_autocast_enabled("cpu", on)),
    _Setting(
        "autocast on GPUs", lambda: torch.is_autocast_enabled("cuda"), lambda on: torch.set_autocast_enabled("cuda", on)
    ),
    _Setting(
        "deterministic algorithms", _deterministic, lambda v: torch.use_deterministic_algorithms(v[0], warn_only=v[1])
    ),
    _attribute(torch.utils.deterministic, "fill_uninitialized_memory"),
    _Setting("precision of matrices", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    _Setting("torch's threads", torch.get_num_threads, torch.set_num_threads),
    _Setting(
        "anomaly detection",
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda before: torch.autograd.set_detect_anomaly(*before),
    ),
    _Setting("torch's warnings", torch.is_warn_always_enabled, torch.set_warn_always),
    _Setting(
        "how processes share tensors",
        torch.multiprocessing.get_sharing_strategy,
        torch.multiprocessing.set_sharing_strategy,
    ),
    *_backends(),
    *_global_hooks(),
)


def _seed_anew() -> None:
    """Seed the generators as a new process does: Python's and numpy's by chance, torch's by its constant."""
    random.seed()
    np.random.seed(None)
    torch.manual_seed(_TORCH_SEED)


# --- loggers --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _LoggerState:
    level: int = logging.NOTSET
    propagate: bool = True
    disabled: bool = False
    handlers: list[logging.Handler] = field(default_factory=list)
    filters: list[Any] = field(default_factory=list)


def _loggers() -> Iterator[tuple[str, logging.Logger]]:
    yield "", logging.root
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger):
            yield name, logger


def _logger_state(logger: logging.Logger) -> _LoggerState:
    return _LoggerState(logger.level, logger.propagate, logger.disabled, list(logger.handlers), list(logger.filters))


def _restore_logger(name: str, logger: logging.Logger, before: _LoggerState | None) -> None:
    """Restore a logger. One that is new and has the name of a library belongs to it, and stays as it has set it up."""
    if before is None:
        if name.partition(".")[0] in sys.modules:
            return
        before = _LoggerState()
    if logger.level != before.level:
        logger.setLevel(before.level)  # also clears the cache of levels
    logger.propagate, logger.disabled = before.propagate, before.disabled
    logger.handlers[:], logger.filters[:] = before.handlers, before.filters
