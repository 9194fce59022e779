"""Checks on the training itself: whether its curve depends on how a batch is divided."""
