"""Predicts the memory and plans of candidates, for studies, ``scamp estimate`` and ``scamp screen``.

It traces them in child processes and asks the planner.
"""
