"""Runs the command line: ``python -m scamp`` is ``scamp``."""

from scamp.cli import interrupts


def main() -> None:
    """Run ``scamp``, with the commands of scamp-server where it is installed, and exit."""
    interrupts.end_at_once()  # the imports of the command line take a while, and would show a traceback
    from scamp.cli.main import app, run
    from scamp.installed import has_server, installed_module

    run(installed_module("scamp_service.cli.main", "scamp").app if has_server() else app)


if __name__ == "__main__":
    main()
