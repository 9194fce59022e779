"""Traces one training step on fake tensors.

Which buffers it allocates and frees. The only place here that imports torch.
"""
