"""Commands of those who run a service: what keeps it from starting, and copies of what it holds."""
