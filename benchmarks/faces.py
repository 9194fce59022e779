"""Measures what is on which face, who is let in, webhooks while processes are killed, pages by axe,
random requests to the API, and how soon pages of many trials are seen.

Prints every case, and last the figures as one line of JSON. Use --only, --cases and --results to run a part of the
cases and to continue later.

A part is a module as ``benchmarks.running.runner`` describes it, and a line of ``PARTS``.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.facing import axe_part, capabilities_part, credentials_part, fuzz_part, hooks_part, speed_part
from benchmarks.running.part import Part
from benchmarks.running.runner import run_parts

COMMAND = "python -m benchmarks.faces --results FILE --write PAGE"
PARTS: Mapping[str, Part] = {
    "capabilities": capabilities_part,
    "credentials": credentials_part,
    "hooks": hooks_part,
    "axe": axe_part,
    "fuzz": fuzz_part,
    "speed": speed_part,
}


if __name__ == "__main__":
    run_parts(__doc__, "The faces of ScaMP", COMMAND, PARTS, 600)
