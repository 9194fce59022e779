"""The fastest plan of a candidate whose units may be divided in unlike ways, for ``scamp plan``.

A plan passes through these values. A ``Way`` is a spread of one stage with its costs, a ``StagedWay`` a way with a
number of stages, and ``Found`` the fastest one with its cut: these three know no model, only arrays of numbers.
``BestPlan`` is what was found in terms of the candidate's blocks, with its memory and a simulated step. ``UnevenPlan``
has shares of the batch on unlike devices, and ``Pipeline`` a schedule with a cut. Ranks cannot train all of these
three, so they are no ``Option``, which always has a plan for ranks.
"""
