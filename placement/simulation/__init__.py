"""Gangs on a cluster in virtual time: how fast they progress on shared devices, and what a policy makes of it."""
