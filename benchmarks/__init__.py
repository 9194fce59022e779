"""One module per published figure: ``python -m benchmarks.NAME [--quick]`` prints a table, then one line of JSON."""
