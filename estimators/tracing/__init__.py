"""Traces a training step on fake tensors: which buffers it allocates and frees.

This is the only part of ``estimators`` that imports torch.
"""
