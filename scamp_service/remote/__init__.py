"""Checkpoints in object storage: what lies where, copies to and from it, and the process that makes them."""
