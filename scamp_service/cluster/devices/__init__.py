"""Devices of a cluster: virtual ones, GPUs as NVML sees them, and the pools that hold them."""
