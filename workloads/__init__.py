"""Workloads, and the runtime that trains one rank of a workload under a plan. Knows torch and torch.distributed."""
