"""The state that a model changes in its forward pass, kept the same under every plan."""
