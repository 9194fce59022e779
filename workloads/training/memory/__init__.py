"""The memory of a rank: its budget, its peak, and what its process holds."""
