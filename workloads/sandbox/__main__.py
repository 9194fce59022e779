"""Runs the process that traces: ``python -m workloads.sandbox``."""

from scamp.lean_imports import uncollected


def main() -> None:
    """Serve until stdin ends."""
    with uncollected():
        from workloads.sandbox.server import main as serve
    serve()


if __name__ == "__main__":
    main()
