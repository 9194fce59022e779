"""How weights are updated after the passes of a step: clipping, precision, schedules, averages."""
