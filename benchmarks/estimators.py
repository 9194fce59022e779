"""How good the estimator is: every case, the bad ones too, and last the figures as one line of JSON.

Peaks against what real steps take from the C library; the estimator's shortcuts against direct traces; seconds of a
step against real ones on this CPU.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from benchmarks.estimating import envelope, pace, speed, truth


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="3 cases and 4 points in place of all")
    parser.add_argument("--seed", type=int, default=0, help="of the points that are drawn")
    parser.add_argument("--only", choices=["truth", "envelope", "pace", "speed"], help="one part alone")
    options = parser.parse_args()

    def some(cases: Sequence[truth.Case]) -> Sequence[truth.Case]:
        return cases[:: len(cases) // 3] if options.quick else cases

    parts = {
        "truth": lambda: truth.run(some(list(truth.cases()))),
        "envelope": lambda: envelope.run(4 if options.quick else 100, options.seed),
        "pace": lambda: pace.run(some(list(pace.cases()))),
        "speed": speed.run,
    }
    figures: dict[str, float] = {}
    for name, run in parts.items():
        if options.only in (None, name):
            figures |= run()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
