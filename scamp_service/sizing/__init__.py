"""Predicts what candidates need.

Traces them in child processes and asks the planner, for studies, `scamp estimate` and `scamp screen`.
"""
