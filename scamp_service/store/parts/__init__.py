"""The parts of the store: what each keeps, and who calls it, is in ``store.store``."""
