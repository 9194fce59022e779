"""Writes of the study database by who makes them: reports of ranks, leases of leaders, removals; and what all share."""
