"""Runs the command line: ``python -m scamp`` is ``scamp``."""

from scamp.cli import interrupts
from scamp.lean_imports import uncollected


def main() -> None:
    """Run ``scamp``, with the commands of scamp-server where it is installed, and exit."""
    interrupts.end_at_once()  # the imports of the command line take a while, and would show a traceback
    with uncollected():
        from scamp.cli.main import app, run
        from scamp.installed import has_server, installed_module

        command_line = installed_module("scamp_service.cli.main", "scamp").app if has_server() else app
    run(command_line)


if __name__ == "__main__":
    main()
