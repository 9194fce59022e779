"""Workloads from what people already have: a plain function, a model of Hugging Face's transformers, or Lightning."""
