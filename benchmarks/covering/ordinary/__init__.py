"""Ordinary models, written as users write their files: each is a file of its own."""
