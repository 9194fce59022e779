"""Kinds of device: speed, memory and links, and the catalogue of GPUs."""
