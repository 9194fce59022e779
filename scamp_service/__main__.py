"""Runs the CLI: ``python -m scamp_service`` is ``scamp``."""

import sys
from pathlib import Path

from scamp.cli import interrupts
from scamp.lean_imports import uncollected


def wrong_python(error: ModuleNotFoundError, root: Path) -> str:
    """Says that this Python lacks ScaMP's dependencies, and which one has them; empty if our own module is missing."""
    module = (error.name or "").partition(".")[0]
    if not module or (root / module).exists():
        return ""
    right = root / ".venv" / "bin" / "python"
    use = str(right) if right.exists() else ".venv/bin/python of a checkout of ScaMP in which `make setup` was run"
    return f"{sys.executable} is not ScaMP's Python, as it has no module {module}; use {use}"


if __name__ == "__main__":
    interrupts.end_at_once()  # the imports of the command line take most of a second, and would show a traceback
    try:
        with uncollected():
            from scamp_service.cli.main import main
    except ModuleNotFoundError as error:
        if not (words := wrong_python(error, Path(__file__).resolve().parent.parent)):
            raise
        print("scamp:", words, file=sys.stderr)
        sys.exit(2)
    main()
