"""Runs the command line: ``python -m scamp`` is ``scamp``."""

from scamp.cli.main import main

if __name__ == "__main__":
    main()
