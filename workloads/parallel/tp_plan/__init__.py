"""Tensor parallelism by names and styles of layers, in the notation of transformers (``tp_plan``)."""
