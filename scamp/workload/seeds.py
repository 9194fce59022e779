"""Seeds every generator that a workload may draw from, so that a step draws the same numbers whenever it is made."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch

_MOST = 2**32  # of NumPy's seeds
_PRIME_1, _PRIME_2, _PRIME_5 = 11400714785074694791, 14029467366897019727, 2870177450012600261  # those of xxHash64
_64_BITS = 2**64 - 1
DATA_SEED = 0
"""Seed of what a workload draws before it has a model, such as which samples it holds out: one for all trials."""


def mixed(*numbers: int) -> int:
    """One seed of 64 bits, with a sign, from several whole numbers: the same on every version of Python.

    It is what CPython 3.8 to 3.13 return as the hash of a tuple of these numbers, after xxHash64.
    """
    seed = _PRIME_5
    for number in numbers:
        seed = seed + (_small(number) & _64_BITS) * _PRIME_2 & _64_BITS
        seed = (seed << 31 | seed >> 33) * _PRIME_1 & _64_BITS
    seed = seed + (len(numbers) ^ _PRIME_5 ^ 3527539) & _64_BITS
    return seed - 2**64 if seed >= 2**63 else seed


def _small(number: int) -> int:
    """The remainder of a whole number by the prime 2⁶¹ - 1, with its sign; -2 instead of -1."""
    small = number % (2**61 - 1) if number >= 0 else -(-number % (2**61 - 1))
    return -2 if small == -1 else small


def seed_everything(seed: int | tuple[int, ...], workload: object | None = None) -> None:
    """Seed the generators of torch, NumPy and Python, and those that ``workload`` has as attributes."""
    if torch.cuda.is_available():
        # Not torch.manual_seed: for kinds of devices that are not there, it keeps a stack trace of each call for ever.
        torch.cuda.manual_seed_all(_one_number(seed))
    seed_host(seed, workload)


def seed_host(seed: int | tuple[int, ...], *owners: object) -> None:
    """Seed the generators of torch's CPU, NumPy and Python, and those that ``owners`` have as attributes."""
    number = _one_number(seed)
    torch.default_generator.manual_seed(number)
    random.seed(number)
    np.random.seed(number % _MOST)
    for index, generator in enumerate(generator for owner in owners for generator in _own_generators(owner)):
        own_seed = mixed(number, index)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(own_seed)
        elif isinstance(generator, np.random.Generator):
            bits = generator.bit_generator
            bits.state = type(bits)(own_seed % _MOST).state
        else:
            generator.seed(own_seed % _MOST)


def _one_number(seed: int | tuple[int, ...]) -> int:
    return mixed(*seed) if isinstance(seed, tuple) else _small(seed)


HostStates = tuple[torch.Tensor, Any, Any]


def host_states() -> HostStates:
    """States of the generators of torch's CPU, Python and NumPy."""
    return torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=False)


def restore_host(states: HostStates) -> None:
    """Have these generators continue from what ``host_states`` returned."""
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])


@contextmanager
def kept_generators(*owners: object) -> Iterator[None]:
    """Gives all generators that ``seed_host`` seeds their states back, as if nobody had drawn from them."""
    states = host_states()
    own_states = [
        (generator, state_of_generator(generator)) for owner in owners for generator in _own_generators(owner)
    ]
    try:
        yield
    finally:
        for generator, state in own_states:
            restore_generator(generator, state)
        restore_host(states)


@contextmanager
def kept_over_imports() -> Iterator[None]:
    """Gives the generators of the host their states back if a module was imported for the first time."""
    num_modules, states = len(sys.modules), host_states()
    try:
        yield
    finally:
        if len(sys.modules) != num_modules:
            restore_host(states)


def drawn_from(workload: object) -> object:
    """A value that changes when anybody draws a random number from the generators that ``seed_everything`` seeds."""
    states = [_state_of(generator) for generator in _own_generators(workload)]
    return (
        torch.get_rng_state().numpy().tobytes(),
        random.getstate(),
        _legacy(np.random.get_state(legacy=False)),
        states,
    )


def _own_generators(owner: object) -> Iterator[Any]:
    for value in list(getattr(owner, "__dict__", {}).values()):
        if is_generator(value):
            yield value


@cache
def _is_of_generators(kind: type) -> bool:
    return issubclass(kind, torch.Generator | np.random.Generator | np.random.RandomState | random.Random)


def _state_of(generator: Any) -> object:
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, np.random.Generator):
        return repr(generator.bit_generator.state)
    return _legacy(generator.get_state(legacy=False)) if hasattr(generator, "get_state") else generator.getstate()


def is_generator(value: object) -> bool:
    """Whether a value is a generator of random numbers."""
    kind: Any = type(value)
    return _is_of_generators(kind)


def state_of_generator(generator: Any) -> Any:
    """All that the next numbers of a generator depend on."""
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def restore_generator(generator: Any, state: Any) -> None:
    """Have a generator continue from what ``state_of_generator`` returned."""
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


def _legacy(state: Any) -> object:
    return state["state"]["pos"], state["state"]["key"].tobytes()
