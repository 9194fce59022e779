"""The parts of ``trust``: what the control plane survives, and what it costs at ten thousand trials."""
