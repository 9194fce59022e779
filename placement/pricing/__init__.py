"""What a unit of a model and a plan of all units cost in seconds, and what the bytes of a peak are."""
