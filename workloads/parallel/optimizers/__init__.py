"""How ranks share the step of an optimizer: ZeRO-1, Adasum, and steps on the local parts of parameters."""
