"""Exchanges studies with other tools: Optuna's storage, exports, imports and conversions."""
