"""The parts of the store about who may do what, and who did what."""
