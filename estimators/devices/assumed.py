"""A device kind to compare plans by where nothing was calibrated: a core of a server's CPU, and gloo on one host.

Its rates are rounded from a calibration of an AMD EPYC core. They order plans; no seconds of it are shown to anybody.
"""

from __future__ import annotations

from estimators.devices.kind import DeviceKind, Figure, Link, Links, Rate

_SOURCE = "rounded from an AMD EPYC"
_COMPUTING = Rate(15e-6, 1.2e-11, 1e-10, 4e-10, 1.2e-11)
_MOVING = Rate(10e-6, 0.0, 1e-10, 5e-10)


def _figure(value: float) -> Figure:
    return Figure(value, "assumed", _SOURCE)


_LOOPBACK = Link(_figure(100e-6), _figure(1e9))

ASSUMED_LINKS = Links(_LOOPBACK, _LOOPBACK, _figure(64), _figure(100e-6))
"""Links of gloo over one host's loopback device."""

ASSUMED_CPU = DeviceKind(
    "an assumed CPU",
    dict.fromkeys(("matmul", "convolution", "attention"), _COMPUTING)
    | dict.fromkeys(("normalisation", "lookup", "function", "copy", "other"), _MOVING),
    "assumed",
    verified=False,
    links=ASSUMED_LINKS,
)
"""One core with one thread, as ranks on virtual devices use it."""
