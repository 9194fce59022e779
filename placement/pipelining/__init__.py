"""Steps of pipelines: their simulation, and the cuts between stages."""
