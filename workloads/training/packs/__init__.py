"""Trainings that share a process, the weights that none of them trains, and their passes through these."""
