"""Studies on virtual devices: in a served ScaMP, and with Ray Tune."""
