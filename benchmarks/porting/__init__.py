"""Counts what it takes to have ordinary training scripts trained by ScaMP."""
