"""Values that are known although the tensors are fake, so that code may look at them."""
