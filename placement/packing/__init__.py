"""Puts gangs onto devices by MiB: the ledger of reservations, the packing policy, and its reasons in words."""
