"""Trains one rank of a gang: the training loop, checkpoints, memory budgets."""
