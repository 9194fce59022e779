"""How long each kind of process may be silent before it is ended and replaced, and a trace takes, in seconds."""

TRACE_SECONDS = 60
"""Processor time of a trace, unless the user allows more."""
RANK_SECONDS = 30.0
"""A rank that does not answer."""
STARTING_RANK_SECONDS = 120.0
"""A rank that has never answered."""
SINK_SECONDS = 20.0
"""A sink that does not answer."""
STARTING_SINK_SECONDS = 120.0
"""A sink that was made in place of one that had ended, and has never answered: to end it would only start another."""
LOOP_SECONDS = {"api": 10.0, "controller": 12.0}
"""A child of the supervisor whose loop does not turn. Before that, a lease must be able to lapse."""
STARTING_LOOP_SECONDS = 180.0
"""A child whose loop has not turned once: the controller may wait for Ray."""
