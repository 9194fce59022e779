"""Searches for the best plan of a model whose units may be divided in unlike ways, for ``scamp plan``."""
