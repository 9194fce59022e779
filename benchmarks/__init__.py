"""One module per published figure: ``python -m benchmarks.NAME [--quick]`` prints a table and ends with a line of JSON."""
