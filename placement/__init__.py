"""Decides which plan a candidate gets, on which devices, and when. Pure: numpy and the standard library only."""
