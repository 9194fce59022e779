"""Parts of ``benchmarks.faces``: what people are told."""
