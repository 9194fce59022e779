"""Runs the CLI: ``python -m scamp_service`` is ``scamp``."""

from scamp_service.cli import interrupts

if __name__ == "__main__":
    interrupts.end_at_once()  # the imports of the command line take most of a second, and would show a traceback
    from scamp_service.cli.main import main

    main()
