"""Runs gangs on Ray: rank processes, device pools, GPUs, the sink, a local cluster. The only place that imports Ray."""
