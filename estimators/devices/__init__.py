"""What is known about devices: speed, memory, links, and the catalogue of GPUs."""
