"""Runs the CLI: ``python -m scamp_service`` is ``scamp``."""

from scamp_service.cli.main import main

if __name__ == "__main__":
    main()
