"""Tells people what happens: ``decide`` makes notices of events, ``sending`` sends them, ``notifier`` calls both."""
