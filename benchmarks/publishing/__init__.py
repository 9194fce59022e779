"""Measurements of GPUs that others have published, and models to predict them with."""
