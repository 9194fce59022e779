"""Runs searches: in threads beside the controller, or in a process of their own."""
