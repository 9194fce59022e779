"""Measures what ScaMP's promises are worth: simulated faults, faults put into its own code, a hostile workload,
and an API under load.

Prints every case, and last the figures as one line of JSON. Use --only, --cases and --results to run a part of the
cases and to continue later.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from benchmarks.running.part import Part
from benchmarks.running.runner import run_parts
from benchmarks.trusting import (
    api_part,
    hostile_part,
    hosts_part,
    kills_part,
    mutants_part,
    page_part,
    scale_part,
    seeds_part,
)
from tests.services.seen_python import where_python_is_seen

_INSIDE = "SCAMP_BENCHMARK_IS_INSIDE"
COMMAND = "python -m benchmarks.trust --results FILE --write PAGE"
PARTS: Mapping[str, Part] = {
    "seeds": seeds_part,
    "mutants": mutants_part,
    "kills": kills_part,
    "hosts": hosts_part,
    "hostile": hostile_part,
    "scale": scale_part,
    "api": api_part,
    "page": page_part,
}


def main() -> None:
    """Run the chosen cases, as a process whose Python other users can read: a service runs users' code as one."""
    command = where_python_is_seen([sys.executable, "-m", "benchmarks.trust", *sys.argv[1:]])
    if command[0] != sys.executable and _INSIDE not in os.environ:
        os.execvpe(command[0], command, {**os.environ, _INSIDE: "1"})
    run_parts(__doc__, "What the promises are worth", COMMAND, PARTS, 600)


if __name__ == "__main__":
    main()
