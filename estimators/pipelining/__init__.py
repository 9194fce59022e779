"""The order of passes of a pipeline, by which ranks run it and its time and memory are predicted."""
