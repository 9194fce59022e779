"""Writes a study where a team already looks: TensorBoard, MLflow, Weights & Biases or OpenTelemetry."""
