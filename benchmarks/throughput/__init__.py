"""Compares the speed of trainings by ScaMP with loops that are written by hand for the same model, plan and samples."""
