"""How a model is spread over ranks: one file per parallel axis, and ``apply``, which combines them."""
