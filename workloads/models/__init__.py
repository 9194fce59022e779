"""The workloads that ship with ScaMP."""
