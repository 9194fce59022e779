"""The search space of a study: dimensions, flat slots, points of a grid, and constraints between parameters."""
