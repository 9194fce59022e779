"""Updates of replicas that are combined, and how long ranks wait for each other."""
