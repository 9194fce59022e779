"""Trains one rank of a gang: the training loop, checkpoints and memory budgets."""
