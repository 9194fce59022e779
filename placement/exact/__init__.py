"""The fastest plan of a candidate whose units may be divided in different ways, for ``scamp plan``.

A plan passes through these values. A ``Way`` is a spread of one stage with its costs, a ``StagedWay`` a way with a
number of stages, and ``StagedPlan`` the fastest one with its cut: these three know no model, only arrays of numbers.
The answer is an ``Option``, as that of the planner of studies is. Its ``refinement`` has what a plan does not say: the
blocks of each stage, shares of the batch on different devices, a schedule with its simulated step.
"""
